"""Every parallel strategy trains as one plain PyTorch process does, and goes on from any other's checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.ranks import Ranks, losses, new_run, on_workers, reference, train_rank
from helpers.strategies import BLOCKS, SHORT, Eventful
from torch import nn

from raytrain import (
    CNN,
    DDP,
    FSDP,
    MLP,
    SGD,
    AdamW,
    DataParallel,
    Deterministic,
    Experiment,
    Model,
    ModelParallel,
    Parallel,
    Pipeline,
    Run,
    TensorParallel,
    Torchvision,
    UserError,
)
from raytrain.checkpoint.checkpoints import load_optimizer
from raytrain.parallel.cutting import split
from raytrain.parallel.pipeline_stages import cut
from raytrain.parallel.strategy import RankContext

WAYS = {
    "ddp": (DDP(reduction="torch", find_unused_parameters=True), 2),
    "ddp on 4": (DDP(reduction="torch"), 4),
    "ddp, static graph": (DDP(reduction="torch", static_graph=True, gradient_as_bucket_view=False), 2),
    "fsdp": (BLOCKS, 2),
    "fsdp, gathered": (replace(BLOCKS, reshard_after_forward=False), 2),
    "hsdp": (replace(BLOCKS, shard_over=2), 4),
    "model parallel": (ModelParallel(), 1),
    "ddp times model parallel": (ModelParallel(), 2),
    "data parallel": (DataParallel(), 1),
    "pipeline": (Pipeline(), 2),
    "pipeline, gpipe": (Pipeline(schedule="gpipe"), 2),
    "ddp times pipeline": (Pipeline(stages=2), 4),
    "tensor": (TensorParallel(), 2),
    "ddp times tensor": (TensorParallel(shards=2), 4),
}


def train(ranks: Ranks, e: Experiment, run: Path, parallel: Parallel, world: int, **changes: object) -> list[str]:
    e = on_workers(replace(e, parallel=parallel, **changes), world)  # type: ignore[arg-type]
    return ranks.run(world, train_rank, e, run)


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(way, marks=[pytest.mark.slow] * (way in ("ddp on 4", "fsdp, gathered", "ddp times pipeline")))
        for way in WAYS
    ],
)
def test_losses_and_weights_equal_a_plain_pytorch_loop(ranks: Ranks, tmp_path: Path, way: str) -> None:
    run = new_run(tmp_path / "run", SHORT)
    parallel, world = WAYS[way]
    assert train(ranks, SHORT, run, parallel, world) == ["completed"] * world
    found = losses(run)
    expected, model = reference(SHORT, len(found))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    weights = Run(run).model("last").state_dict()
    assert list(weights) == list(model.state_dict())
    for name, value in model.state_dict().items():
        assert (weights[name] - value).norm() <= 1e-5 * value.norm()


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [SGD(lr=0.05, momentum=0.9), AdamW(lr=1e-3)], ids=["sgd", "adamw"])
def test_each_goes_on_from_the_checkpoint_of_each_other(ranks: Ranks, tmp_path: Path, optimizer: SGD | AdamW) -> None:
    e = replace(SHORT, optimizer=optimizer, micro_batch_size=None)
    names = ("ddp", "fsdp", "model parallel", "data parallel", "pipeline", "tensor")
    whole = new_run(tmp_path / "whole", e)
    train(ranks, e, whole, *WAYS["data parallel"])
    for first in names:
        begun = new_run(tmp_path / f"begun {first}", e)
        stopping = Eventful(stop=str(begun / "stop"))
        assert "interrupted" in train(ranks, e, begun, *WAYS[first], task=stopping)
        (begun / "stop").unlink()
        assert 1 < Run(begun).summary["steps"] <= 12
        for second in names:
            run = tmp_path / f"{first} {second}"
            subprocess.run(["cp", "-r", str(begun), str(run)], check=True)
            assert set(train(ranks, e, run, *WAYS[second])) == {"completed"}
            np.testing.assert_allclose(losses(run), losses(whole), rtol=1e-5, err_msg=f"{first}, then {second}")


@pytest.mark.parametrize(
    "parallel", [BLOCKS, DDP(), Pipeline(), TensorParallel()], ids=["fsdp", "ddp", "pipe", "tensor"]
)
def test_ranks_with_uneven_micro_batches_stay_together(ranks: Ranks, tmp_path: Path, parallel: Parallel) -> None:
    indices = {split: index.take(np.arange(137)) for split, index in SHORT.data.index().items()}  # 137 = 2 * 64 + 9
    found = {}
    for world, way in ((1, DDP()), (2, parallel)):
        e = on_workers(replace(SHORT, parallel=way, micro_batch_size=4), world)
        run = new_run(tmp_path / f"{world}", e)
        ranks.run(world, train_rank, e, run, indices)
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        found[world] = [row[name] for row in rows for name in ("loss", "val_loss", "val_accuracy") if name in row]
    np.testing.assert_allclose(found[2], found[1], rtol=1e-5)


DEEP = MLP(hidden=(32, 32, 32))


@pytest.mark.parametrize(
    ("parallel", "world", "model"),
    [
        (Pipeline(schedule="interleaved"), 2, DEEP),
        (Pipeline(), 4, DEEP),
        pytest.param(Pipeline(schedule="gpipe"), 4, DEEP, marks=pytest.mark.slow),
        (TensorParallel(), 4, DEEP),
        (TensorParallel(), 2, MLP(hidden=(30, 33))),
    ],
    ids=["interleaved", "pipeline on 4", "gpipe on 4", "tensor on 4", "tensor, by columns"],
)
def test_a_deep_model_over_all_workers(
    ranks: Ranks, tmp_path: Path, parallel: Parallel, world: int, model: MLP
) -> None:
    e = replace(SHORT, model=model, memory_format="contiguous", micro_batch_size=None)
    run = new_run(tmp_path / "run", e)
    assert train(ranks, e, run, parallel, world) == ["completed"] * world
    expected, plain = reference(e, 24)
    np.testing.assert_allclose(losses(run), expected, rtol=1e-5)
    for name, value in plain.state_dict().items():
        assert (Run(run).model("last").state_dict()[name] - value).norm() <= 1e-5 * value.norm()


MEMORY = """
import resource
import sys
from pathlib import Path
import numpy as np
import torch
import torch.distributed as dist
sys.path.insert(0, {here!r})
from helpers.ranks import train_rank
from raytrain.run.experiment_file import load
run, rank = Path(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{{run}}/store", rank=rank, world_size=2)
e = load(str(run / "experiment.json"))[0]
train_rank(rank, 2, e, run, {{split: index.take(np.arange(64)) for split, index in e.data.index().items()}})
(run / f"peak_{{rank}}").write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024))
"""


@pytest.mark.slow
def test_fsdp_takes_less_memory_than_ddp(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peaks = {}
    for name, parallel in (("ddp", DDP(reduction="torch")), ("fsdp", FSDP())):
        e = replace(SHORT, model=MLP(hidden=(4096,) * 5), parallel=parallel, epochs=1, micro_batch_size=None)
        run = new_run(tmp_path / name, on_workers(e, 2))
        code = MEMORY.format(here=str(Path(__file__).parents[1]))
        started = [subprocess.Popen([sys.executable, "-c", code, str(run), str(rank)]) for rank in range(2)]
        assert [process.wait(120) for process in started] == [0, 0]
        peaks[name] = int((run / "peak_1").read_text())  # rank 0 holds a checkpoint besides, which is whole
    with capsys.disabled():
        print(f" peak of a worker: ddp {peaks['ddp']} MiB, fsdp {peaks['fsdp']} MiB ", end="")
    assert peaks["fsdp"] < peaks["ddp"]


def test_gradients_travel_compressed_and_training_goes_on(ranks: Ranks, tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", SHORT)
    assert train(ranks, SHORT, run, DDP(compression="bf16"), 2) == ["completed"] * 2
    expected, _ = reference(SHORT, 15)
    np.testing.assert_allclose(losses(run)[:15], expected, rtol=0.05)
    assert not np.allclose(losses(run)[:15], expected, rtol=1e-5), "bf16 has 8 bits"


def convert_rank(rank: int, world: int) -> tuple[list[str], int, bool]:
    """What SyncBatchNorm makes of a model: its names, how many layers it changed, whether the tensors are the same."""
    module = CNN(channels=(8, 16), batch_norm=True).build((1, 8, 8), 10)
    before, tensors = list(module.state_dict()), [*module.parameters(), *module.buffers()]
    with pytest.raises(ValueError, match="SyncBatchNorm layers only work with GPU modules"):
        parallel, here = DDP(reduction="torch", sync_batchnorm=True), RankContext(rank, world, torch.device("cpu"))
        parallel.setup(lambda: module, here, (1, 1))
    assert list(module.state_dict()) == before
    same = all(one is other for one, other in zip(tensors, [*module.parameters(), *module.buffers()], strict=True))
    return before, sum(isinstance(part, nn.SyncBatchNorm) for part in module.modules()), same


def test_sync_batchnorm_keeps_names_and_tensors(ranks: Ranks) -> None:
    (names, layers, same), _ = ranks.run(2, convert_rank)
    assert layers == 2 and same and sum("running_mean" in name for name in names) == 2


def test_layers_are_split_where_the_largest_part_is_smallest() -> None:
    layers = nn.Sequential(nn.Flatten(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 80), nn.ReLU(), nn.Linear(80, 8))
    parts = split(layers, 2)
    assert [one for part in parts for one in part] == list(layers)
    assert [sum(p.numel() for layer in part for p in layer.parameters()) for part in parts] == [792, 648]
    assert [len(part) for part in split(nn.Sequential(layers), 3)] == [2, 2, 2]
    with pytest.raises(
        UserError, match="5 parts need as many layers with parameters, and Sequential has: Linear, Linear"
    ):
        split(layers, 5)


def test_resnet_is_cut_between_its_blocks() -> None:
    module = Torchvision("resnet18").build((3, 64, 64), 10)
    stages = cut(module, 4)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    held = [[names[id(parameter)] for parameter in stage.parameters()] for stage in stages]
    assert sorted(name for part in held for name in part) == sorted(names.values())
    assert held[0][0] == "conv1.weight" and held[-1][-1] == "fc.bias"
    for train in (True, False):
        module.train(train)
        values = images = torch.randn(2, 3, 64, 64)
        for stage in stages:
            values = stage(values)
        torch.testing.assert_close(values, module(images), rtol=0, atol=0)
    with pytest.raises(UserError, match="blocks with parameters, and ResNet has: conv1, bn1, layer1"):
        cut(module, 40)


def test_batchnorm_statistics_equal_those_of_one_process(ranks: Ranks, tmp_path: Path) -> None:
    # All batches are whole: a short last one is filled up with copies, which BatchNorm sees.
    indices = {split: index.take(np.arange(5 * 64)) for split, index in SHORT.data.index().items()}
    e = replace(SHORT, model=CNN(channels=(8, 16), batch_norm=True), batch_size=64)
    runs = []
    for parallel, world in ((DDP(), 1), (Pipeline(), 2)):
        runs.append(new_run(tmp_path / f"{world}", e))
        ranks.run(world, train_rank, on_workers(replace(e, parallel=parallel), world), runs[-1], indices)
    np.testing.assert_allclose(losses(runs[1]), losses(runs[0]), rtol=1e-5)
    one, found = (Run(run).model("last").state_dict() for run in runs)
    for name, value in one.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)


@dataclass(frozen=True)
class Blocks(Model):
    """A model whose blocks are in a list."""

    def build(self, sample: tuple[int, int, int], classes: int) -> nn.Module:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.blocks = nn.ModuleList([nn.Linear(64, 64) for _ in range(3)])
                self.head = nn.Linear(64, classes)

            def forward(self, images: torch.Tensor) -> torch.Tensor:
                features = images.flatten(1)
                for block in self.blocks:
                    features = block(features).relu()
                return self.head(features)

        return Net()


def test_the_blocks_of_a_list_are_sharded_each_by_itself(ranks: Ranks, tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", SHORT)
    assert train(ranks, replace(SHORT, model=Blocks()), run, BLOCKS, 2) == ["completed"] * 2
    expected, _ = reference(replace(SHORT, model=Blocks()), 15)
    np.testing.assert_allclose(losses(run)[:15], expected, rtol=1e-5)


@pytest.mark.parametrize(
    "parallel",
    [DDP(), DDP(reduction="torch"), BLOCKS, Pipeline(), TensorParallel()],
    ids=["shared", "ddp", "fsdp", "pipeline", "tensor"],
)
@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_a_step_that_is_not_finite_is_left_out_on_all_ranks(
    ranks: Ranks, tmp_path: Path, parallel: Parallel, clip_norm: float | None
) -> None:
    task = Eventful(factor=float("nan"))
    e = replace(SHORT, task=task, on_nonfinite="skip", micro_batch_size=None, clip_norm=clip_norm)
    run = new_run(tmp_path / "run", e)
    assert train(ranks, e, run, parallel, 2) == ["completed"] * 2
    rows = Run(run).metrics("step").to_pylist()
    left_out = [row["step"] for row in rows if row["skipped"]]
    assert left_out == [row["step"] for row in rows if row["loss"] is None]
    assert len(left_out) == 2 and left_out[0] <= 12 < left_out[1], "once an epoch"
    assert Run(run).summary["skipped_steps"] == 2 and Run(run).summary["val_accuracy"] > 0.2


@pytest.mark.parametrize(
    "parallel",
    [DDP(), DDP(reduction="torch"), BLOCKS, Pipeline()],
    ids=["shared", "ddp", "fsdp", "pipeline"],
)
def test_fp16_overflow_skips_a_step_and_resume_keeps_the_scale(
    ranks: Ranks, tmp_path: Path, parallel: Parallel
) -> None:
    e = replace(SHORT, model=MLP(hidden=(32,)), precision="fp16", micro_batch_size=None, clip_norm=None)
    e = replace(e, task=Eventful(factor=1e30))
    whole, parts = new_run(tmp_path / "whole", e), new_run(tmp_path / "parts", e)
    assert train(ranks, e, whole, parallel, 2) == ["completed"] * 2
    rows = steps(whole)
    assert len([row for row in rows if row["skipped"]]) == 2
    assert (
        train(ranks, e, parts, parallel, 2, task=Eventful(factor=1e30, stop=str(parts / "stop"))).count("completed")
        == 0
    )
    (parts / "stop").unlink()
    assert load_optimizer(Run(parts).checkpoint("last"))["precision"]["scale"] == 2.0**15, "halved once"
    assert train(ranks, e, parts, parallel, 2) == ["completed"] * 2
    assert steps(parts) == rows
    for run in (whole, parts):
        assert load_optimizer(Run(run).checkpoint("last"))["precision"]["scale"] == 2.0**14
        assert Run(run).summary["skipped_steps"] == 2


def steps(run: Path) -> list[dict]:
    return [{name: row[name] for name in ("step", "loss", "skipped")} for row in Run(run).metrics("step").to_pylist()]


def test_sharded_strategy_works_alone_in_its_process(tmp_path: Path) -> None:
    e = replace(SHORT, parallel=BLOCKS, precision="fp16", micro_batch_size=None, epochs=1)
    assert train_rank(0, 1, e, new_run(tmp_path / "run", e)) == "completed"


@pytest.mark.parametrize(
    "parallel",
    [BLOCKS, pytest.param(Pipeline(), marks=pytest.mark.slow), TensorParallel()],
    ids=["fsdp", "pipeline", "tensor"],
)
def test_auto_precision_tries_the_model_that_is_spread_and_leaves_it_as_it_was(
    ranks: Ranks, tmp_path: Path, parallel: Parallel
) -> None:
    e = replace(SHORT, model=CNN(channels=(8, 16), batch_norm=True), epochs=1, precision="auto")
    tried = new_run(tmp_path / "tried", e)
    assert train(ranks, e, tried, parallel, 2) == ["completed"] * 2
    (row,) = Run(tried).metrics("precision").to_pylist()
    assert row["milliseconds"]["fp32"] > 0 and row["milliseconds"]["bf16"] > 0
    plain = new_run(tmp_path / "plain", e)
    assert train(ranks, e, plain, parallel, 2, precision=row["chosen"]) == ["completed"] * 2
    assert (losses(tried) == losses(plain)).all()
    weights = (Run(run).model("last").state_dict() for run in (tried, plain))
    assert all(torch.equal(one, other) for one, other in zip(*(found.values() for found in weights), strict=True))


def drawn(rank: int, world: int, parallel: Parallel) -> list[torch.Tensor]:
    """The weights of a rank whose model draws them by itself."""

    def build() -> nn.Module:
        module = nn.Linear(3, 2)
        nn.init.constant_(module.weight, float(np.random.default_rng().uniform()))
        module.register_buffer("noise", torch.tensor(np.random.default_rng().uniform()))
        module.register_buffer("empty", torch.empty(0, dtype=torch.bool))
        module.register_buffer("blur", torch.rand(4, 1, 3, 3).to(memory_format=torch.channels_last))
        return module

    strategy = parallel.setup(build, RankContext(rank, world, torch.device("cpu")), (1, 1))
    strategy.broadcast_buffers()
    return [tensor.detach().clone() for tensor in strategy.module.state_dict().values()]


@pytest.mark.parametrize("parallel", [DDP(), DDP(reduction="torch"), Deterministic(), Deterministic(reduction="torch")])
def test_replicas_begin_with_the_weights_of_rank_0(ranks: Ranks, parallel: Parallel) -> None:
    first, second = ranks.run(2, drawn, parallel)
    assert all(map(torch.equal, first, second)), "also those that NumPy has drawn, which raytrain does not seed"
