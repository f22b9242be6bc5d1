"""Errors of CUDA: after which of them a run starts again from its checkpoint, and what it says of the others."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from ray.exceptions import RayActorError

from raytrain import MLP, Digits, Experiment
from raytrain.driver import gpu_errors
from raytrain.driver.endings import RunFailed
from raytrain.driver.failures import run_failure as _failure
from raytrain.driver.worker import _recorded
from raytrain.sweep import attempt, record
from raytrain.sweep.attempt import Data, Limits


def cuda(text: str, code: int | None = None) -> torch.AcceleratorError:
    """An error as torch makes it: https://github.com/pytorch/pytorch/pull/152023."""
    error = torch.AcceleratorError(
        f"CUDA error: {text}\nCUDA kernel errors might be asynchronously reported at some other"
    )
    if code is not None:
        error.error_code = code  # type: ignore[attr-defined]
    return error


ECC = cuda("uncorrectable ECC error encountered", 214)
ASSERT = cuda("device-side assert triggered", 710)
NCCL = "NCCL error in: NCCLUtils.cpp:94, unhandled cuda error\nncclUnhandledCudaError: Call to CUDA function failed.\n"
MEMORY = torch.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.20 GiB is "
    "free. Process 12 has 77.90 GiB memory in use. Of the allocated memory 76.00 GiB is allocated by PyTorch."
)
LOST = {
    "ECC": ECC,
    "illegal address": cuda("an illegal memory access was encountered", 700),
    "contained": cuda("Invalid access of peer GPU memory over nvlink or a hardware error", 226),
    "unknown, as after Xid 79": cuda("unknown error", 999),
    "by its constant alone": RuntimeError(
        "CUDA error: unspecified launch failure\nSearch for `cudaErrorLaunchFailure' in"
    ),
    "by its description alone, from a C++ extension": RuntimeError(
        "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously reported"
    ),
    "a GPU that failed in NCCL": dist.DistBackendError(
        NCCL + "Last error:\nCuda failure 719 'unspecified launch failure'"
    ),
}
AGAIN = {
    "assert": ASSERT,
    "assert, by its constant": RuntimeError(
        "CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in"
    ),
    "assert, in NCCL": dist.DistBackendError(NCCL + "Last error:\nCuda failure 710 'device-side assert triggered'"),
    "assert, without its number": dist.DistBackendError(NCCL + "Cuda failure 'device-side assert triggered'"),
    "memory": MEMORY,
    "memory, of the driver": cuda("out of memory", 2),
    "memory, in NCCL": dist.DistBackendError(NCCL + "Last error:\nCuda failure 2 'out of memory'"),
    "two ranks on one GPU": dist.DistBackendError(
        "NCCL error in: NCCLUtils.cpp:94, invalid usage, NCCL version 2.28.9\nncclInvalidUsage: This usually reflects "
        "invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 50"
    ),
    "no kernel for this GPU": cuda("no kernel image is available for execution on the device", 209),
    "invalid value": cuda("invalid argument", 1),
}


def recorded(folder: Path, error: BaseException, rank: int = 0) -> RunFailed:
    """What a run says of a rank's error."""
    (folder / "logs").mkdir(exist_ok=True)
    job: Any = SimpleNamespace(own_output=False, run=folder)
    with pytest.raises(type(error)), _recorded(job, rank):
        raise error
    return _failure(RuntimeError("workers failed"), folder)


@pytest.mark.parametrize("name", LOST)
def test_a_gpu_that_fails_is_a_lost_worker(tmp_path: Path, name: str) -> None:
    found = recorded(tmp_path, LOST[name])
    assert found.lost and str(found).startswith("the GPU of rank 0 failed: ") and "\n" not in str(found)


@pytest.mark.parametrize("name", AGAIN)
def test_what_a_program_asked_of_a_gpu_ends_the_run(tmp_path: Path, name: str) -> None:
    assert not recorded(tmp_path, AGAIN[name]).lost


def test_a_value_that_a_kernel_refused_is_said_to_be_the_user_s(tmp_path: Path) -> None:
    said = str(recorded(tmp_path, ASSERT))
    assert said.startswith(
        "rank 0: AcceleratorError: CUDA error: device-side assert triggered; a kernel refused a value"
    )
    assert "a label that is not below the number of classes" in said and "\n" not in said


def test_memory_that_is_too_small_is_said_with_its_remedy(tmp_path: Path) -> None:
    said = str(recorded(tmp_path, MEMORY))
    assert "of which 1.20 GiB is free; use a smaller --micro_batch_size" in said and "Process 12" not in said


def test_rank_of_a_failed_gpu_is_named(tmp_path: Path) -> None:
    recorded(tmp_path, dist.DistBackendError("NCCL communicator was aborted on rank 0."), rank=0)
    found = recorded(tmp_path, ECC, rank=1)
    assert found.lost and found.rank == 1 and "uncorrectable ECC error" in str(found)
    records = [json.loads((tmp_path / "logs" / f"rank_{rank}.json").read_text()) for rank in (0, 1)]
    assert [record["lost"] for record in records] == [True, True]


LIBRARY = RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb, m)`")
CUDNN = RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED_CUDART")


@pytest.mark.parametrize("library", [LIBRARY, CUDNN])
@pytest.mark.parametrize(("behind", "lost"), [(ECC, True), (ASSERT, False), (None, False)])
def test_what_a_library_hides_is_asked_of_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: RuntimeError, behind: RuntimeError | None, lost: bool
) -> None:
    def query() -> bool:
        if behind:
            raise behind
        return True

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(query=query))
    found = recorded(tmp_path, library)
    assert found.lost == lost and (str(behind or library).split("\n")[0].split("; ")[0] in str(found))


# What NCCL's watchdog writes before it ends a process: https://github.com/pytorch/pytorch/issues/118369,
# https://github.com/XPixelGroup/BasicSR/issues/737 and https://github.com/huggingface/open-r1/issues/620
LATE = (
    "[rank1]:[E626 06:24:44.903881913 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=9801523, NumelOut=9801523, Timeout(ms)=600000) ran for 600020 "
    "milliseconds before timing out.\nterminate called after throwing an instance of 'c10::DistBackendError'\n"
)
THROWN = "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated with exception: "
MORE = "\nException raised from checkForNCCLErrorsInternal at ProcessGroupNCCL.cpp:2363 (most recent call first):\n"
ENDS = {
    "late": (LATE, True, "a collective (ALLREDUCE) took more than 600 s"),
    "ECC": (THROWN + str(ECC), True, "CUDA error: uncorrectable ECC error encountered"),
    "assert": (THROWN + str(ASSERT), False, "a kernel refused a value"),
    "remote": (
        f"{THROWN}NCCL error: remote process exited or there was a network error, NCCL version 2.28.9{MORE}",
        True,
        "NCCL error: remote process exited or there was a network error",
    ),
}


def gone(folder: Path, logs: dict[int, str], before: str = "") -> RunFailed:
    """What a run says of ranks whose processes are gone, after they wrote their logs, `before` in earlier processes."""
    (folder / "logs").mkdir()
    for rank, text in logs.items():
        (folder / "logs" / f"rank_{rank}.log").write_text(before + text)
        (folder / "logs" / f"place_{rank}.json").write_text(json.dumps({"node": "n", "log": len(before)}))
    failed: Any = RuntimeError("workers failed")
    failed.worker_failures = {rank: RayActorError() for rank in logs}
    return _failure(failed, folder)


@pytest.mark.parametrize("name", ENDS)
def test_the_end_that_nccl_s_watchdog_makes_of_a_process_is_told(tmp_path: Path, name: str) -> None:
    log, lost, said = ENDS[name]
    found = gone(tmp_path, {1: f"epoch 3\n{log}frame #0: c10::Error::Error + 0x96\n"})
    assert found.lost == lost and said in str(found)
    assert str(found).startswith("rank 1 was ended by NCCL's watchdog: ") and "\n" not in str(found)


def test_the_rank_whose_gpu_failed_is_named_before_those_that_waited_for_it(tmp_path: Path) -> None:
    found = gone(tmp_path, {0: ENDS["remote"][0], 1: ENDS["late"][0], 2: ENDS["ECC"][0]})
    assert found.rank == 2 and found.lost


def test_the_end_of_an_earlier_process_is_not_told_again(tmp_path: Path) -> None:
    found = gone(tmp_path, {1: "Killed by hand\n"}, before=ENDS["assert"][0])
    assert found.lost and str(found).endswith("or its node was lost; its last line: Killed by hand")


def test_a_collective_of_gloo_that_takes_too_long_is_a_lost_worker(tmp_path: Path) -> None:
    text = "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv "
    found = recorded(tmp_path, RuntimeError(text + "operation to complete"))
    assert found.lost and str(found) == "rank 0 waited 1800 s for another rank in a collective"


def test_errors_of_a_cpu_are_none_of_cuda(tmp_path: Path) -> None:
    for error in (ValueError("cudaErrorAssert"), RuntimeError("expected scalar type Long"), KeyError("x")):
        assert gpu_errors.code(error) is None and gpu_errors.explain(error) is None
        assert not recorded(tmp_path, error).lost


class Exited(BaseException):
    """What takes the place of the end of a process."""


@pytest.mark.parametrize(
    ("error", "exits", "spoiled"), [(ECC, True, False), (ASSERT, False, True), (MEMORY, False, False)]
)
def test_a_trial_ends_its_process_when_its_gpu_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: RuntimeError, exits: bool, spoiled: bool
) -> None:
    def fail(*_: object) -> None:
        raise error

    def exit(status: int) -> None:
        raise Exited(status)

    monkeypatch.setattr(attempt.Attempt, "_job", lambda self: None)
    monkeypatch.setattr(attempt, "work", fail)
    monkeypatch.setattr(attempt.os, "_exit", exit)
    trial = attempt.Attempt(tmp_path, Experiment(model=MLP(), data=Digits()), Data(None, {}), Limits(None, 60))
    if exits:
        with pytest.raises(Exited):
            trial._train()
    else:
        trial._train()
        assert record.read(tmp_path)["status"] == ("infeasible" if error is MEMORY else "failed")
    assert trial.spoiled == spoiled, "the next trial of the process has no GPU either"


def test_codes_have_the_names_of_cuda_s_header() -> None:
    spec = importlib.util.find_spec("nvidia")
    folders = cast(Any, spec).submodule_search_locations if spec else []
    headers = [file for folder in folders for file in Path(folder).glob("cu*/include/driver_types.h")]
    if not headers:
        pytest.skip("CUDA's headers are not installed")
    declared = dict(re.findall(r"^\s+(cudaError\w+)\s+=\s+(\d+)", headers[0].read_text(), re.MULTILINE))
    names = {name: code for code, (name, _) in gpu_errors.LOST.items()}
    assert {name: int(declared[name]) for name in names} == names
    assert (int(declared["cudaErrorAssert"]), int(declared["cudaErrorMemoryAllocation"])) == (
        gpu_errors.ASSERT,
        gpu_errors.MEMORY,
    )


def test_descriptions_are_those_of_cuda_s_runtime() -> None:
    runtime = getattr(torch._C, "_cudart", None)
    if runtime is None:
        pytest.skip("torch is built without CUDA")
    for code, (_, description) in gpu_errors.LOST.items():
        assert runtime.cudaGetErrorString(runtime.cudaError(code)) == description
