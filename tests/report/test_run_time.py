"""What holds a run back: the phase that is named, the advice, the section of a page, the lines on the console."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.commands import DIGITS, fails
from helpers.ranks import new_run

from raytrain import CNN, DDP, MNIST, Checkpoint, Experiment, ImageFolder, Run
from raytrain.cli import profile as profile_command
from raytrain.driver.options import Options
from raytrain.report import run_page, run_time
from raytrain.report.profile import show_profile
from raytrain.training.phases import PHASES

BASE = Experiment(model=CNN(), data=MNIST(root="data"), epochs=3, batch_size=32)
EVEN = {"data": 1.0, "augment": 1.0, "compute": 10.0, "exchange": 1.0, "checkpoint": 0.0, "validation": 1.0}
OFTEN = replace(BASE, checkpoint=Checkpoint(every_steps=10))
SPARSE = replace(BASE, validate_every_steps=50)


@pytest.mark.parametrize(
    ("phase", "value", "says"),
    [
        ("data", BASE, "--data.mode resident"),
        ("augment", BASE, "data.augment"),
        ("exchange", BASE, "--batch_size, such as 64"),
        ("exchange", replace(BASE, parallel=DDP(reduction="torch")), "--parallel.compression bf16"),
        ("checkpoint", OFTEN, "--checkpoint.every_steps 190"),
        ("validation", SPARSE, "--validate_every_steps 950"),
        ("validation", replace(BASE, data=ImageFolder("photos")), "unless the data has a split of its own"),
        ("hooks", BASE, "hooks"),
    ],
)
def test_the_longest_phase_is_named_with_what_to_change(phase: str, value: Experiment, says: str) -> None:
    seconds = EVEN | {phase: sum(EVEN.values()) - EVEN.get(phase, 0.0)}  # half of the time
    found = run_time.bottleneck(seconds, value)
    assert found and found.phase == phase and found.share == pytest.approx(0.5)
    assert says in found.advice and found.line.startswith(f"{PHASES[phase]} takes 50% of the time: ")


def test_images_that_gpus_decode_are_not_to_be_resident() -> None:
    found = run_time.bottleneck(EVEN | {"data": 30.0}, replace(BASE, data=ImageFolder("photos", decode="gpu")))
    assert found and "leave more CPUs to reading" in found.advice and "resident" not in found.advice


def test_the_advice_on_checkpoints_leaves_a_twentieth_of_the_time() -> None:
    seconds = EVEN | {"checkpoint": 13.0}
    found = run_time.bottleneck(seconds, OFTEN)
    assert found
    fewer = int(found.advice.partition("every_steps ")[2].split(",")[0]) / 10
    left = [13.0 / times / (13.0 / times + sum(EVEN.values())) for times in (fewer, fewer - 1)]
    assert left[0] <= 0.05 < left[1]


def test_a_gpu_hides_what_takes_less_than_it_computes() -> None:
    cases = [(data, device) for data in (8.0, 12.0) for device in ("cpu", "cuda")]
    found = [run_time.bottleneck(EVEN | {"data": data}, BASE, device) for data, device in cases]
    assert [one and one.phase for one in found] == ["data", "compute", "data", "data"]
    assert run_time.bottleneck({}, BASE) is None and run_time.bottleneck({"data": 0.0}, BASE) is None
    even = run_time.bottleneck(EVEN, BASE)
    assert even and even.phase == "compute" and not even.advice


def test_the_console_s_line_is_for_runs_that_something_holds_back() -> None:
    summary = {f"seconds_{name}": 10 * value for name, value in EVEN.items()}
    assert run_time.line(summary, BASE) == ""
    slow = summary | {"seconds_data": 140.0, "device": "cpu"}
    assert run_time.line(slow, BASE).startswith("waiting for data takes 52% of the time: ")
    assert run_time.line({name: value for name, value in slow.items() if name != "seconds_data"}, BASE) == ""
    short = {name: value / 100 for name, value in slow.items() if isinstance(value, float)}
    assert run_time.line(short, BASE) == "" and run_time.line({"seconds": 99.0, "seconds_data": "x"}, BASE) == ""


def test_a_page_has_the_seconds_of_each_epoch(tmp_path: Path) -> None:
    run, rows = Run(new_run(tmp_path / "run", BASE)), []
    for epoch in (1, 2):
        for step, kind in ((epoch * 10 - 5, "validation"), (epoch * 10, "epoch")):
            spent = {f"seconds_{name}": value * epoch * step for name, value in EVEN.items()}
            rows.append({"kind": kind, "epoch": epoch, "step": step, "val_loss": 0.5, "seconds": 99.0, **spent})
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = run_page.single(run)
    part = page[page.index('id="time"') : page.index('id="experiment"')]
    assert "Computing takes 71% of the time." in part and part.count("<rect") == 2 * len(EVEN) + len(EVEN)
    assert "epoch 2, computing: 400.00 s" in part, "the last row of an epoch has all of it"
    assert '<th scope="row">all</th><td class="number">700.0000</td>' in part
    (run.path / "metrics.jsonl").write_text(json.dumps({"kind": "epoch", "epoch": 1, "step": 5, "seconds": 1.0}) + "\n")
    assert "Time spent" not in run_page.single(run), "of an older version"


def test_a_profile_prints_the_rank_that_the_others_wait_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(new_run(tmp_path / "run", BASE))
    show_profile(run, BASE)
    assert "no profile" in capsys.readouterr().out
    reads = {"rank": 1, "activities": {"waiting for data": 0.3, "in a forward pass": 0.1}}
    waits = {"rank": 0, "activities": {"exchanging gradients": 0.3, "in a forward pass": 0.1}}
    more = {"steps": 10, "operators": [{"name": "aten::mm", "calls": 40, "seconds": 0.05}], "device": None}
    figures = {"first": 11, "ranks": [waits | more, reads | more], "device": "cpu", "steps_per_epoch": 100}
    (run.path / "logs").mkdir()
    (run.path / "logs" / "profile.json").write_text(json.dumps(figures))
    rows = [{"kind": "validation", "seconds_validation": 2.0}, {"kind": "epoch", "seconds_validation": 3.0}]
    lines = [json.dumps(row | {"epoch": 1, "step": 5}) for row in rows]
    (run.path / "metrics.jsonl").write_text("\n".join([*lines, ""]))
    show_profile(run, BASE)
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert said[:3] == [
        "steps 11 to 20 on rank 1, which the others wait for",
        "waiting for data 30.00 ms a step 75%",
        "in a forward pass 10.00 ms a step 25%",
    ]
    assert "aten::mm 40 calls 50.0 ms" in said
    assert "a validation takes 1.00 s, 20% of the time if it follows 100 steps" in said
    assert any(line.startswith("bottleneck: waiting for data takes 60% of the time: ") for line in said)


@pytest.mark.parametrize(
    ("idle", "value", "advice"),
    [
        (0.06, BASE, "the GPU waits for its host 60% of the time: launch a step at once with --graph auto"),
        (0.06, replace(BASE, graph="auto"), "with a larger --batch_size, such as 64"),
        (0.06, replace(BASE, micro_batch_size=8), "with a larger --batch_size, such as 64"),
        (0.01, BASE, None),
    ],
)
def test_a_profile_says_that_a_host_launches_too_slowly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], idle: float, value: Experiment, advice: str | None
) -> None:
    run = Run(new_run(tmp_path / "run", value))
    device = {"compute": 0.03, "exchange": 0.0, "copies": 0.01, "idle": idle}
    rank = {"rank": 0, "activities": {"in a forward pass": 0.1}, "steps": 10, "operators": [], "device": device}
    (run.path / "logs").mkdir()
    figures = {"first": 11, "ranks": [rank], "device": "cuda", "steps_per_epoch": 100}
    (run.path / "logs" / "profile.json").write_text(json.dumps(figures))
    (run.path / "metrics.jsonl").write_text(json.dumps({"kind": "epoch", "epoch": 1, "step": 5}) + "\n")
    show_profile(run, value)
    said = " ".join(capsys.readouterr().out.split())
    assert advice in said if advice else "waits for its host" not in said


@pytest.mark.parametrize("steps", ["0", "-3", "many"])
def test_a_wrong_number_of_steps_is_one_line(capsys: pytest.CaptureFixture[str], steps: str) -> None:
    assert "--steps must be a whole number from 1 on" in fails(capsys, "profile", DIGITS, "--steps", steps)


def test_a_sweep_is_not_profiled(capsys: pytest.CaptureFixture[str]) -> None:
    assert "raytrain profile EXPERIMENT" in fails(capsys, "folds", DIGITS, "--profile")


def test_a_profile_ends_by_its_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Experiment] = []
    monkeypatch.setattr(profile_command, "trained", lambda value, *_others, **_more: found.append(value))
    profile_command.profile(replace(BASE, patience=1, max_hours=0.1), Options(profile=True, profile_steps=5), None)
    assert (found[0].steps, found[0].patience, found[0].max_hours) == (15, None, None)
