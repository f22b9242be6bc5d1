"""The meaning of a CUDA error for a run: the GPU is lost, or the program would fail again.

CUDA's errors are told by their codes (the runtime API's `cudaError_t`), which `torch.AcceleratorError` has as
`error_code`. Errors that libraries raise for it, such as NCCL's, name the code or its constant in their text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LOST = {
    46: ("cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"),
    127: ("cudaErrorStartupFailure", "startup failure in cuda runtime"),
    214: ("cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"),
    220: ("cudaErrorNvlinkUncorrectable", "uncorrectable NVLink error detected during the execution"),
    226: ("cudaErrorContained", "Invalid access of peer GPU memory over nvlink or a hardware error"),
    304: ("cudaErrorOperatingSystem", "OS call failed or operation not supported on this OS"),
    700: ("cudaErrorIllegalAddress", "an illegal memory access was encountered"),
    702: ("cudaErrorLaunchTimeout", "the launch timed out and was terminated"),
    714: ("cudaErrorHardwareStackError", "hardware stack error"),
    715: ("cudaErrorIllegalInstruction", "an illegal instruction was encountered"),
    716: ("cudaErrorMisalignedAddress", "misaligned address"),
    717: ("cudaErrorInvalidAddressSpace", "operation not supported on global/shared address space"),
    718: ("cudaErrorInvalidPc", "invalid program counter"),
    719: ("cudaErrorLaunchFailure", "unspecified launch failure"),
    802: ("cudaErrorSystemNotReady", "system not yet initialized"),
    805: ("cudaErrorMpsConnectionFailed", "MPS client failed to connect to the MPS control daemon or the MPS server"),
    806: ("cudaErrorMpsRpcFailure", "the remote procedural call between the MPS server and the MPS client failed"),
    807: ("cudaErrorMpsServerNotReady", "MPS server is not ready to accept new MPS client requests"),
    810: ("cudaErrorMpsClientTerminated", "the MPS client has been terminated by the server"),
    909: ("cudaErrorTimeout", "wait operation timed out"),
    911: ("cudaErrorExternalDevice", "an async error has occured in external entity outside of CUDA"),
    999: ("cudaErrorUnknown", "unknown error"),
}
"""Codes after which a new process goes on from the checkpoint: failures of the hardware, the driver and its servers,
and those of which CUDA's reference says that the process must be terminated and relaunched. Faults of kernels (700 to
719) are among them: a bug makes them, but so does a failing GPU, and NVIDIA's catalogue of Xid errors has "restart
the application" for them. 46 also comes while the process before is still leaving a GPU in exclusive mode. One that
comes again ends the run after `scaling.max_failures` starts without progress. The texts are the constant and the
description."""
ASSERT, MEMORY = 710, 2
"""Codes after which it does not: what a kernel was given, and how much memory was asked for, come again."""
_TOLD = {text: code for code, texts in LOST.items() for text in texts} | {
    **{"cudaErrorAssert": ASSERT, "device-side assert triggered": ASSERT},
    **{"cudaErrorMemoryAllocation": MEMORY, "out of memory": MEMORY},
}
_MENTION = re.compile(r"\b(cudaError[A-Z]\w+)|\bCuda failure (?:(\d+)|'(.*?)')|\bCUDA error: ([^\n]+)")
"""How texts mention an error: by its constant; as NCCL has it, by its number or its description; or as torch's C++
extensions and NCCL's watchdog have it, whose errors are not `AcceleratorError`s, by its description."""
_LIBRARY = re.compile(r"\b(CUBLAS|CUDNN|CUFFT|CUSOLVER|CUSPARSE)_STATUS_(EXECUTION|INTERNAL|MAPPING|ARCH)")
_MISUSE = re.compile(r"\bnccl(InvalidUsage|InvalidArgument)\b")
_TIMED_OUT = re.compile(r"collective operation timeout: WorkNCCL\([^\n]*?OpType=(\w+)[^\n]*?Timeout\(ms\)=(\d+)")
_ENDED = re.compile(r"watchdog thread terminated with exception: ([^\n]+)")
_REMEDIES = {
    ASSERT: "a kernel refused a value, most often a label or an index that is out of range, such as a label that is "
    "not below the number of classes: train with --scaling.gpus_per_worker 0 to see which",
    MEMORY: "use a smaller --micro_batch_size",
}


def code(error: BaseException) -> int | None:
    """Return the CUDA error code of an exception; None for any other."""
    found = getattr(error, "error_code", None)
    if isinstance(found, int) and type(error).__name__ == "AcceleratorError":
        return found
    if type(error).__name__ == "OutOfMemoryError":
        return MEMORY
    if not isinstance(error, RuntimeError):  # which those of torch are
        return None
    mention = _MENTION.search(str(error))
    if mention is None:
        return None
    constant, number, *descriptions = mention.groups()
    return int(number) if number else _TOLD.get(constant or next(filter(None, descriptions)).strip())


def lost(error: BaseException) -> bool:
    """Return whether a new process may do what this one could not, since the GPU failed."""
    return code(error) in LOST


def hides(error: BaseException) -> bool:
    """Return whether an error of one of CUDA's libraries may hide one of the GPU, which it does not name."""
    return isinstance(error, RuntimeError) and code(error) is None and bool(_LIBRARY.search(str(error)))


def misuses(error: BaseException) -> bool:
    """Return whether NCCL refuses what the program asked of it, which it would again: two ranks on one GPU."""
    return bool(_MISUSE.search(str(error)))


class End(NamedTuple):
    """The end of a process by NCCL's watchdog, a thread of torch whose exception reaches no Python code.

    Attributes:
        error: for people, in a line.
        waited: whether it only waited for other ranks.
        lost: whether a new process may go on.
    """

    error: str
    waited: bool
    lost: bool


def ended(log: str) -> End | None:
    """Return how NCCL's watchdog ended a process, from what torch wrote; None where it did not."""
    if found := _TIMED_OUT.search(log):
        return End(f"a collective ({found.group(1)}) took more than {int(found.group(2)) / 1000:g} s", True, True)
    if found := _ENDED.search(log):
        error = RuntimeError(found.group(1).strip())
        again = code(error) in (ASSERT, MEMORY) or misuses(error)
        return End(explain(error) or str(error), code(error) is None and not again, not again)
    return None


def explain(error: BaseException) -> str | None:
    """Return one line on an error of CUDA, with its remedy where there is one; None for any other."""
    found = code(error)
    if found is None:
        return None
    said = str(error).strip().split("\n")[0]
    if found == MEMORY:  # what was asked for and what is there; figures of the allocator follow
        said = " ".join(re.split(r"(?<=\.)\s+", said)[:3])
    return f"{said.rstrip('.')}; {_REMEDIES[found]}" if found in _REMEDIES else said
