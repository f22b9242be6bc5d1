"""A run that is cut off and resumed is the run that was not: bit for bit on as many workers."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.cut_runs import BASE, Cut, cut_rank, rows, weights
from helpers.ranks import Ranks, losses, new_run, on_workers, train_rank
from torch import nn

from raytrain import (
    CNN,
    DDP,
    SGD,
    AdamW,
    Augment,
    Checkpoint,
    Constant,
    Digits,
    Experiment,
    Model,
    Optimizer,
    Run,
    UserError,
)
from raytrain.checkpoint import checkpoints, layout, side_thread
from raytrain.data.loader import Loaded
from raytrain.run import writer
from raytrain.training.losses import Step
from raytrain.training.trainer import Trainer

SHORT = replace(BASE, batch_size=128)
"""Of 12 steps an epoch."""


@pytest.mark.parametrize("world", [2, 4])
def test_resume_is_bit_equal_under_ddp(ranks: Ranks, tmp_path: Path, world: int) -> None:
    e = on_workers(replace(SHORT, optimizer=SGD(lr=0.05, momentum=0.9), parallel=DDP(reduction="torch")), world)
    whole, cut = new_run(tmp_path / "whole", e), new_run(tmp_path / "cut", e)
    ranks.run(world, train_rank, e, whole)
    for call in (8, 4, 12):
        ranks.run(world, cut_rank, e, cut, call)
    ranks.run(world, train_rank, e, cut)
    assert rows(cut) == rows(whole) and weights(cut) == weights(whole)


def test_the_precision_that_was_faster_stays_with_the_run(ranks: Ranks, tmp_path: Path) -> None:
    e = on_workers(replace(BASE, precision="auto"), 2)
    run = new_run(tmp_path / "run", e)
    ranks.run(2, cut_rank, e, run, 50)
    chosen = Run(run).experiment.precision
    ranks.run(2, train_rank, Run(run).experiment, run)
    again = new_run(tmp_path / "again", Run(run).experiment)
    ranks.run(2, train_rank, Run(again).experiment, again)
    said, *rest = rows(run)
    assert rows(again) == rest and weights(again) == weights(run)
    times, summary = said["milliseconds"], Run(run).summary
    assert (said["kind"], said["chosen"]) == ("precision", chosen) and list(times) == ["fp32", "bf16", "fp16"]
    assert times[chosen] <= times["fp32"] and Run(run).metrics("precision")["chosen"].to_pylist() == [chosen]
    assert summary["precision"] == chosen and summary["precision_milliseconds"] == times
    assert "precision_milliseconds" not in Run(again).summary


@dataclass(frozen=True)
class Delicate(Model):
    """Divides by what is zero where there are few digits."""

    def build(self, sample: tuple[int, int, int], classes: int) -> nn.Module:
        class Net(nn.Sequential):
            def forward(self, input: torch.Tensor) -> torch.Tensor:
                logits = super().forward(input)
                return logits / ((torch.ones_like(logits) + 1e-4) - 1) * 1e-4

        return Net(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, classes))


def test_auto_leaves_no_trace_and_skips_nonfinite_precisions(ranks: Ranks, tmp_path: Path) -> None:
    e = on_workers(replace(BASE, model=Delicate(), precision="auto"), 2)
    auto, plain = new_run(tmp_path / "auto", e), new_run(tmp_path / "plain", e)
    ranks.run(2, train_rank, e, auto)
    ranks.run(2, train_rank, replace(e, precision="fp32"), plain)
    said, *rest = rows(auto)
    assert said["chosen"] == "fp32" and said["milliseconds"]["fp32"] > 0
    assert said["milliseconds"]["bf16"] is said["milliseconds"]["fp16"] is None
    assert rest == rows(plain) and weights(auto) == weights(plain)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", [SGD(lr=0.05, momentum=0.9), AdamW(lr=1e-2)], ids=["sgd", "adamw"])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_resumed_run_is_bit_identical(
    ranks: Ranks, tmp_path: Path, world: int, optimizer: Optimizer, precision: str
) -> None:
    e = on_workers(replace(SHORT, optimizer=optimizer, precision=precision), world)  # type: ignore[arg-type]
    whole, cut = new_run(tmp_path / "whole", e), new_run(tmp_path / "cut", e)
    ranks.run(world, train_rank, e, whole)
    for call in (8, 4, 12):  # in the first epoch, then right after a resume, then in the second epoch
        ranks.run(world, cut_rank, e, cut, call)
    assert layout.newest(cut / "checkpoints") is not None
    ranks.run(world, train_rank, e, cut)
    assert rows(cut) == rows(whole)
    assert [row["step"] for row in rows(cut) if row["kind"] == "step"] == list(range(1, 25))
    assert weights(cut) == weights(whole)


@pytest.mark.parametrize("world", [1, 2])
def test_a_run_with_every_augmentation_resumes_bit_identical(ranks: Ranks, tmp_path: Path, world: int) -> None:
    augment = Augment(crop="random_resized", flip=0.5, policy="randaugment", erase=0.5, mixup=0.4, cutmix=1.0)
    e = on_workers(replace(SHORT, data=Digits(augment=augment), optimizer=SGD(lr=0.05, momentum=0.9)), world)
    whole, cut = new_run(tmp_path / "whole", e), new_run(tmp_path / "cut", e)
    ranks.run(world, train_rank, e, whole)
    for call in (8, 4, 12):
        ranks.run(world, cut_rank, e, cut, call)
    ranks.run(world, train_rank, e, cut)
    assert rows(cut) == rows(whole) and weights(cut) == weights(whole)


def test_fp16_resumes_with_its_scale(ranks: Ranks, tmp_path: Path) -> None:
    e = replace(BASE, optimizer=SGD(lr=0.05, momentum=0.9), precision="fp16")
    whole, cut = new_run(tmp_path / "whole", e), new_run(tmp_path / "cut", e)
    ranks.run(1, train_rank, e, whole)
    ranks.run(1, cut_rank, e, cut, 13)
    path = layout.newest(cut / "checkpoints")
    assert path is not None and checkpoints.load_optimizer(path)["precision"]["scale"] > 1
    ranks.run(1, train_rank, e, cut)
    assert rows(cut) == rows(whole) and weights(cut) == weights(whole)


def test_resume_on_other_workers_keeps_the_curve(ranks: Ranks, tmp_path: Path) -> None:
    base = replace(BASE, model=CNN(channels=(8, 16)), optimizer=SGD(lr=0.05, momentum=0.9))
    whole, moved = new_run(tmp_path / "whole", base), new_run(tmp_path / "moved", base)
    ranks.run(1, train_rank, base, whole)
    for world, call in ((4, 13), (2, 14), (1, 12)):
        ranks.run(world, cut_rank, on_workers(base, world), moved, call)
    ranks.run(4, train_rank, on_workers(base, 4), moved)
    expected, found = rows(whole), rows(moved)
    assert [row.get("step") for row in found] == [row.get("step") for row in expected]
    np.testing.assert_allclose([r["loss"] for r in found if r["kind"] == "step"],
                               [r["loss"] for r in expected if r["kind"] == "step"], rtol=1e-3)  # fmt: skip


def test_a_damaged_newest_checkpoint_is_passed_over(ranks: Ranks, tmp_path: Path) -> None:
    e = replace(BASE, optimizer=SGD(lr=0.05))
    whole, cut = new_run(tmp_path / "whole", e), new_run(tmp_path / "cut", e)
    ranks.run(1, train_rank, e, whole)
    ranks.run(1, cut_rank, e, cut, 13)
    newest = layout.newest(cut / "checkpoints")
    assert newest is not None and newest.name == "step_00000010"
    damaged = bytearray((newest / "model.safetensors").read_bytes())
    damaged[-1] ^= 1
    (newest / "model.safetensors").write_bytes(damaged)
    ranks.run(1, train_rank, e, cut)
    assert rows(cut) == rows(whole) and weights(cut) == weights(whole)


def test_only_the_newest_and_the_best_checkpoints_are_kept(ranks: Ranks, tmp_path: Path) -> None:
    e = replace(BASE, optimizer=SGD(lr=0.05, momentum=0.9), checkpoint=Checkpoint(every_steps=3, keep=2), epochs=3)
    run = new_run(tmp_path / "run", e)
    ranks.run(1, train_rank, e, run)
    kept = sorted(path.name for path in (run / "checkpoints").iterdir())
    best = json.loads((run / "best.json").read_text())
    accuracies = Run(run).metrics()["val_accuracy"].to_pylist()
    assert best["val_accuracy"] == max(accuracies) == Run(run).summary["val_accuracy"]
    assert best["epoch"] == accuracies.index(max(accuracies)) + 1
    assert json.loads((run / "last.json").read_text())["checkpoint"] == "step_00000069"
    before = accuracies.index(max(accuracies[:2])) + 1  # a run that goes back to step 66 finds the best one of then
    assert kept == sorted({"step_00000066", "step_00000069", best["checkpoint"], f"step_{23 * before:08d}"})


def test_a_request_to_stop_writes_a_checkpoint_and_loses_no_step(ranks: Ranks, tmp_path: Path) -> None:
    e = replace(BASE, optimizer=SGD(lr=0.05, momentum=0.9))
    whole, stopped = new_run(tmp_path / "whole", e), new_run(tmp_path / "stopped", e)
    ranks.run(1, train_rank, e, whole)
    (stopped / "stop").touch()
    assert ranks.run(1, train_rank, e, stopped) == ["interrupted"]
    assert Run(stopped).summary["status"] == "interrupted" and Run(stopped).summary["steps"] == 1
    (stopped / "stop").unlink()
    assert ranks.run(1, train_rank, e, stopped) == ["completed"]
    assert rows(stopped) == rows(whole) and weights(stopped) == weights(whole)


def full_disk_rank(rank: int, world: int, e: Experiment, run: Path, first: int, last: int) -> str | None:
    """Some checkpoints meet a full disk, half written. Returns what the run ended with, if that was an error."""
    write, calls = os.write, []

    def fails(descriptor: int, data: bytes) -> int:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        calls.extend([1] if name.endswith(layout.MODEL) else [])
        if first <= len(calls) <= last and "/step_" in name:
            write(descriptor, bytes(data[: len(data) // 2]))
            raise OSError(28, "No space left on device")
        return write(descriptor, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", fails)
        patch.setattr(side_thread, "_PATIENCE", 1.0)
        try:
            train_rank(rank, world, e, run)
        except UserError as error:
            return str(error)
    return None


@pytest.mark.parametrize("world", [1, 2])
def test_failed_checkpoint_is_noted_and_training_continues(ranks: Ranks, tmp_path: Path, world: int) -> None:
    e = on_workers(BASE, world)
    whole, full = new_run(tmp_path / "whole", e), new_run(tmp_path / "full", e)
    ranks.run(world, train_rank, e, whole)
    assert ranks.run(world, full_disk_rank, e, full, 3, 5) == [None] * world  # steps 15, 20 and the first epoch's end
    noted = (full / "logs" / "checkpoints.log").read_text().splitlines()
    assert [line.split(" ", 1)[1] for line in noted] == [
        f"step {step}: No space left on device" for step in (15, 20, 23)
    ]
    assert rows(full) == rows(whole) and weights(full) == weights(whole)
    assert sorted(path.name for path in (full / "checkpoints").iterdir()) == ["step_00000045", "step_00000046"]
    assert Run(full).summary["status"] == "completed"


def test_a_best_checkpoint_that_was_refused_is_not_pointed_to(ranks: Ranks, tmp_path: Path) -> None:
    still = replace(BASE, model=CNN(channels=(8,)), optimizer=SGD(lr=1e-12), epochs=3)  # the first epoch stays best
    run = new_run(tmp_path / "run", still)
    assert ranks.run(1, full_disk_rank, still, run, 5, 5) == [None]
    assert not (run / "best.json").exists() and Run(run).checkpoint("best").name == "step_00000069"


def test_failed_last_checkpoint_ends_the_run(ranks: Ranks, tmp_path: Path) -> None:
    whole, cut = new_run(tmp_path / "whole", BASE), new_run(tmp_path / "cut", BASE)
    ranks.run(1, train_rank, BASE, whole)
    (said,) = ranks.run(1, full_disk_rank, BASE, cut, 3, 1000)
    assert said == (
        f"the last checkpoint cannot be written: No space left on device, {cut}; "
        "correct that; a resume goes on from step_00000010, the newest that is there"
    )
    newest = layout.newest(cut / "checkpoints")
    assert newest is not None and newest.name == "step_00000010" and not (cut / "summary.json").exists()
    assert [path.name for path in (cut / "checkpoints").iterdir() if path.name > newest.name] == []
    ranks.run(1, train_rank, BASE, cut)
    assert rows(cut) == rows(whole) and weights(cut) == weights(whole)


def lost_files_rank(rank: int, world: int, e: Experiment, run: Path, lost: str) -> str:
    """Files of the run are gone after step 12. Returns what the run ended with."""
    step = Trainer.step

    def step_and_lose(worker: Trainer, loaded: Loaded) -> Step:
        if worker.progress.step == 12 and worker.writer:
            worker.writer.background.wait()
            (run / lost).rename(run.with_name("away"))
            if lost == "checkpoints":
                (run / lost).touch()  # a folder would be made again
        return step(worker, loaded)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(UserError) as found:
        patch.setattr(Trainer, "step", step_and_lose)
        patch.setattr(side_thread, "_PATIENCE", 1.0)
        train_rank(rank, world, e, run)
    return str(found.value)


@pytest.mark.parametrize(
    ("lost", "put"),
    [(".", "bring the folder"), ("checkpoints", "put metrics.jsonl and"), ("metrics.jsonl", "put metrics.jsonl and")],
)
def test_a_run_whose_files_are_gone_says_what_a_resume_needs(ranks: Ranks, tmp_path: Path, lost: str, put: str) -> None:
    run = new_run(tmp_path / "run", BASE)
    (said,) = ranks.run(1, lost_files_rank, BASE, run, lost)
    assert f"{run}; {put}" in said and said.endswith(" train again")


def test_last_checkpoint_is_retried(ranks: Ranks, tmp_path: Path) -> None:
    whole, full = new_run(tmp_path / "whole", BASE), new_run(tmp_path / "full", BASE)
    ranks.run(1, train_rank, BASE, whole)
    assert ranks.run(1, full_disk_rank, BASE, full, 10, 11) == [None]
    assert rows(full) == rows(whole) and weights(full) == weights(whole)
    assert Run(full).checkpoint("last").name == "step_00000046"


def gone_for_a_while_rank(rank: int, world: int, e: Experiment, run: Path, gone: int, back: int) -> None:
    """The run's directory is not there between two steps."""
    step = Trainer.step

    def step_and_look(worker: Trainer, loaded: Loaded) -> Step:
        done = worker.progress.step
        if done in (gone, back) and worker.writer:
            worker.writer.background.wait()
            run.rename(run.with_name("away")) if done == gone else run.with_name("away").rename(run)
        return step(worker, loaded)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", step_and_look)
        train_rank(rank, world, e, run)


def test_vanished_directory_costs_only_its_checkpoints(ranks: Ranks, tmp_path: Path) -> None:
    whole, gone = new_run(tmp_path / "whole", BASE), new_run(tmp_path / "gone", BASE)
    ranks.run(1, train_rank, BASE, whole)
    ranks.run(1, gone_for_a_while_rank, BASE, gone, 8, 32)
    noted = (gone / "logs" / "checkpoints.log").read_text().splitlines()
    assert [line.split()[2] for line in noted] == ["10:", "15:", "20:", "23:", "25:", "30:"]
    assert all("No such file or directory" in line for line in noted)
    assert rows(gone) == rows(whole) and weights(gone) == weights(whole)


def cut_before_pointer_rank(rank: int, world: int, e: Experiment, run: Path, name: str, step: int) -> None:
    """Fails when a file that points to the checkpoint of that step would be written."""
    write = writer.write_atomically

    def write_atomically(path: Path, text: str) -> None:
        if path.name == name and json.loads(text)["step"] >= step:
            raise Cut
        write(path, text)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Cut):
        patch.setattr(writer, "write_atomically", write_atomically)
        train_rank(rank, world, e, run)


@pytest.mark.parametrize("name", ["best.json", "last.json"])
def test_kill_between_manifest_and_pointers_loses_nothing(ranks: Ranks, tmp_path: Path, name: str) -> None:
    still = replace(BASE, model=CNN(channels=(8,)), optimizer=SGD(lr=1e-12))  # the first epoch stays the best one:
    e = replace(still, epochs=3, checkpoint=Checkpoint())  # no later epoch mends the pointer
    whole, cut = new_run(tmp_path / "whole", e), new_run(tmp_path / "cut", e)
    ranks.run(1, train_rank, e, whole)
    ranks.run(1, cut_before_pointer_rank, e, cut, name, 23)
    assert (cut / "checkpoints" / "step_00000023" / "manifest.json").is_file()
    ranks.run(1, train_rank, e, cut)
    pointers = [
        [json.loads((run / at).read_text())["checkpoint"] for at in ("best.json", "last.json")] for run in (whole, cut)
    ]
    assert pointers[0] == pointers[1] and pointers[0][0] == "step_00000023"
    assert Run(cut).checkpoint("best").name == "step_00000023"


@pytest.mark.parametrize(
    ("before", "after", "group"),
    [
        (SGD(lr=0.05, momentum=0.9), SGD(lr=0.05, momentum=0.9, weight_decay=0.5), {"weight_decay": 0.5}),
        (SGD(lr=0.05, momentum=0.9), SGD(lr=0.05, momentum=0.1), {"momentum": 0.1}),
        (AdamW(lr=0.01), AdamW(lr=0.01, betas=(0.5, 0.9)), {"betas": (0.5, 0.9)}),
        (
            SGD(lr=0.05, backbone_lr_factor=0.5),
            SGD(lr=0.05, backbone_lr_factor=0.25),
            {"factor": 0.25, "lr": 0.05 * 0.25},
        ),
    ],
)
def test_values_changed_by_a_scheduler_survive_a_checkpoint(
    tmp_path: Path, before: Optimizer, after: Optimizer, group: dict[str, object]
) -> None:
    base = replace(BASE, optimizer=before, schedule=Constant(), epochs=1)
    run = new_run(tmp_path / "run", base)
    assert train_rank(0, 1, base, run) == "completed"
    changed = Path(shutil.copytree(run, tmp_path / "changed"))
    for path, optimizer in ((run, before), (changed, after)):
        assert train_rank(0, 1, replace(base, optimizer=optimizer, epochs=2), path) == "completed"
    assert losses(run)[:24].tolist() == losses(changed)[:24].tolist(), (
        "the first step computes its loss before it updates"
    )
    assert losses(run)[24:].tolist() != losses(changed)[24:].tolist()
    _, _, tensors, _ = checkpoints.load(next(iter(sorted(changed.glob("checkpoints/step_*"), reverse=True))))
    assert {name: tensors["optimizer"]["param_groups"][0][name] for name in group} == group
