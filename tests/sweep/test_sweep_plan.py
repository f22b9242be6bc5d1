"""How a sweep shares the nodes out among its trials, without Ray: every trial has room, alone and beside the others."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.commands import fails, no_runs, without_ray
from helpers.ranks import train_rank
from helpers.times import without_times
from ray.exceptions import RayTaskError
from ray.tune import CLIReporter

from raytrain import (
    ASHA,
    MLP,
    PBT,
    SGD,
    AdamW,
    Checkpoint,
    Choice,
    Classification,
    Complete,
    Data,
    Digits,
    Experiment,
    Folds,
    Grid,
    HyperBand,
    ImageFolder,
    Index,
    Int,
    LogUniform,
    Manifest,
    MaskFolder,
    Scaling,
    Sweep,
    UserError,
    config,
)
from raytrain.driver.endings import RunFailed
from raytrain.driver.failures import end_of_actor
from raytrain.driver.resources import Node, Resources
from raytrain.run import experiment_file
from raytrain.sweep import record, stopped, sweep_plan, tuning
from raytrain.sweep.space import Axis
from raytrain.sweep.trials import Trials
from raytrain.sweep.tuning import _Proposed

__all__ = ["no_runs", "without_ray"]

BASE = Experiment(model=MLP(hidden=(8,)), data=Digits(), epochs=4)
LR = Grid("optimizer.lr", (0.1, 0.01, 0.001, 1.0))
WORKERS = Grid("scaling.workers", (1, 2))


def nodes(*cpus: float, gpus: tuple[float, ...] = ()) -> Resources:
    counts = (*gpus, *[0.0] * len(cpus))
    found = (Node(f"n{place}", count, counts[place], 2**34) for place, count in enumerate(cpus))
    return Resources(tuple(found), "a cluster")


def planned(out: Path, resources: Resources, *axes: Axis, scaling: Scaling | None = None, **fields: object):  # type: ignore[no-untyped-def]
    base = replace(BASE, scaling=scaling or Scaling())
    mode = fields.pop("mode", "resident")
    base = replace(base, data=Digits(mode=mode))  # type: ignore[arg-type]
    return sweep_plan.make(Sweep(base, axes, **fields), lambda: resources, out)  # type: ignore[arg-type]


def test_the_plan_says_which_points_have_no_trial(tmp_path: Path) -> None:
    points, axis = ({"optimizer.lr": 0.1}, {"optimizer.lr": 0.2}), Choice("optimizer.lr", (0.1, 0.2))
    for trials, said in ((1, "1 of its 2 points, one for each of the trials"), (2, None)):
        lines = planned(tmp_path, nodes(2), axis, trials=trials, first=points).lines(str(tmp_path))
        assert dict(lines).get("first") == said


def test_sweep_json_is_that_of_all_records_at_once(tmp_path: Path) -> None:
    """The texts of ended trials are kept; the file is the same as if all were turned into text anew."""
    trials = Trials(tmp_path, planned(tmp_path, nodes(2), LR), 0.0)
    answer = trials.write("running")
    assert answer["trials"] == [] == json.loads((tmp_path / "sweep.json").read_text())["trials"]
    for number, status in ((2, "completed"), (0, "running"), (1, "failed"), (0, "stopped")):
        if status != "stopped":
            assert trials.propose(number) is not None
        record.update(record.folder(tmp_path, number), status=status, error='a "\u2603"\n')
        answer = trials.write("running")
        assert (tmp_path / "sweep.json").read_text() == json.dumps(answer, indent=2)
    statuses = [(one["number"], one["status"]) for one in answer["trials"]]
    assert statuses == [(0, "stopped"), (1, "failed"), (2, "completed")] and trials.ended.keys() == {0, 1, 2}
    assert Trials(tmp_path, trials.planned, 0.0).records() == answer["trials"], "as another command reads them"


@pytest.mark.parametrize(("keep", "kept"), [(4, [0, 1, 2, 3]), (3, [0, 3]), (1, [0])])
def test_trials_without_a_value_keep_their_weights_where_all_do(tmp_path: Path, keep: int, kept: list[int]) -> None:
    """As the folds of `raytrain folds`, of which one may have a single class, and no AUROC."""
    plan = planned(tmp_path, nodes(2), LR, keep=keep)
    trials = Trials(tmp_path, plan, 0.0)
    for number, accuracy in enumerate((0.5, None, None, 0.4)):
        trials.propose(number)
        folder = record.folder(tmp_path, number)
        (folder / "checkpoints").mkdir()
        row = {"kind": "epoch", "epoch": 1, "step": 1, "val_accuracy": accuracy}
        (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        record.update(folder, status="completed")
    for one in (trials, Trials(tmp_path, plan, 0.0)):  # also where it goes on
        one.tidy()
        one.tidy(final=True)
        assert [n for n in range(4) if (record.folder(tmp_path, n) / "checkpoints").is_dir()] == kept


def test_worker_without_memory_makes_its_trial_infeasible(tmp_path: Path) -> None:
    trials = Trials(tmp_path, planned(tmp_path, nodes(2), LR), 0.0)
    ends = ("rank 1 was ended by Ray, since its node ran out of memory: use fewer workers", "rank 1 is gone")
    for number, said in enumerate(ends):
        trials.propose(number)
        error = RayTaskError("step", "traceback", RunFailed(said, tmp_path, 1, lost=True))
        trials.ended_by_tune(number, error, end_of_actor(error))
    assert [one["status"] for one in trials.records()] == ["infeasible", "crashed"]
    assert trials.records()[1]["error"] == "rank 1 is gone"


def test_tune_shows_nothing_of_its_own_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tune's choice for a notebook displays an empty output as soon as it is made."""
    trials = Trials(tmp_path, planned(tmp_path, nodes(2), LR), 0.0)
    monkeypatch.setattr(tuning, "_trainable", lambda *_: lambda config: None)
    tuner: Any = tuning._tuner(trials, {}, [])
    assert type(tuner._local_tuner.get_run_config().progress_reporter) is CLIReporter


def test_objects_are_known_by_their_labels_and_by_those_of_older_sweeps(tmp_path: Path) -> None:
    models = (MLP(hidden=(8,)), MLP(hidden=(16,)))
    trials = Trials(tmp_path, planned(tmp_path, nodes(2), Grid("model", models)), 0.0)
    older = "MLP(weights='none', new_head=False, hidden=(16,), dropout=0.0)"
    assert trials.labels({"model": models[1]}) == {"model": "MLP(hidden=(16,))"}
    assert [trials._values({"values": {"model": label}}) for label in ("MLP(hidden=(16,))", older)] == [
        {"model": models[1]}
    ] * 2
    assert "model=MLP(hidden=(8,))" in str(trials.planned.lines("runs/sweep"))


def test_a_trial_that_goes_on_has_the_names_of_its_objects(tmp_path: Path) -> None:
    """Beside axes that change these objects."""
    choice, rate = Choice("optimizer", (SGD(), AdamW())), LogUniform("optimizer.lr", 0.005, 0.1)
    plan = planned(tmp_path, nodes(2), choice, rate, trials=4)
    found: list[Any] = []
    for _ in range(2):  # the second driver finds the trials of the first
        trials = Trials(tmp_path, plan, 0.0)
        asked = _Proposed(trials, [0, 1, 2, 3], lambda: 4)
        found.append([asked.suggest(str(number)) for number in range(4)])
    assert found[0] == found[1]
    assert {one["values"]["optimizer"] for one in found[0]} == {"SGD", "AdamW"}


@dataclass(frozen=True)
class Widths(Axis):
    """An axis of one's own that draws tuples."""

    def draw(self, quantile: float) -> Any:
        return (8 + int(8 * quantile), 8)


def test_a_repeat_of_a_trial_has_its_tuple(tmp_path: Path) -> None:
    """Also where another driver has proposed the first one."""
    plan = planned(tmp_path, nodes(2), Widths("model.hidden"), trials=2, repeats=2)
    assert (first := Trials(tmp_path, plan, 0.0).propose(0)) is not None
    again = Trials(tmp_path, plan, 0.0)
    again.replay()
    assert again.propose(1) == first and isinstance(first["model.hidden"], tuple)


def test_values_of_a_population_are_the_axis_own_after_a_kill(tmp_path: Path) -> None:
    """Though the sweep lets each task watch its objective."""
    tasks = (Classification(), Classification(label_smoothing=0.1))
    axes = (Choice("task", tasks), LogUniform("optimizer.lr", 0.01, 0.1))
    plan = planned(tmp_path, nodes(2), *axes, trials=4, objective="val_loss", scheduler=PBT())
    found = [[Trials(tmp_path, plan, 0.0).propose(number) for number in range(4)] for _ in range(2)]
    assert found[0] == found[1] and all(one and one["task"] in tasks for one in found[1])
    trials = Trials(tmp_path, plan, 0.0)
    taken = {"values": config.plain({"task": tasks[1], "optimizer.lr": 0.05})}
    assert trials._values(taken) == {"task": tasks[1], "optimizer.lr": 0.05}
    assert trials.labels({"task": Classification(label_smoothing=0.3)})["task"]["label_smoothing"] == 0.3


@pytest.mark.parametrize(
    ("axes", "length"),
    [
        ((Grid("epochs", (4, 12)),), 12),
        ((Grid("batch_size", (8, 16)), Choice("epochs", (2, 3), when=("batch_size", 8))), 6),
        ((Grid("batch_size", (8, 16)),), 6),
    ],
    ids=["all", "some", "none"],
)
def test_a_scheduler_knows_the_longest_trial(tmp_path: Path, axes: tuple[Axis, ...], length: int) -> None:
    base = replace(BASE, epochs=6, data=Digits(mode="resident"))
    more = {"trials": 4} if len(axes) > 1 else {}
    plan = sweep_plan.make(Sweep(base, axes, scheduler=ASHA(), **more), lambda: nodes(2), tmp_path)  # type: ignore[arg-type]
    assert plan.length == length


def test_a_stopped_trial_has_a_summary_though_its_process_was_killed(tmp_path: Path) -> None:
    base = replace(BASE, data=Digits(mode="resident"), epochs=2, validate_every_steps=10, checkpoint=Checkpoint(keep=9))
    plan = sweep_plan.make(Sweep(base, (LR,), scheduler=ASHA(), trials=2), lambda: nodes(2), tmp_path)
    trials = Trials(tmp_path, plan, 0.0)
    assert trials.propose(0) is not None
    run = record.folder(tmp_path, 0)
    e, (variant,) = experiment_file.load(run / "experiment.json")[0], plan.variants.values()
    train_rank(0, 1, e, run)
    known = json.loads((run / "summary.json").read_text())
    record.update(run, status="stopped")
    assert stopped.concluded(run, record.read(run))
    (run / "summary.json").unlink()
    assert not stopped.concluded(run, record.read(run)), "its process may still write: its checkpoints stay"
    trials.clear()
    found = json.loads((run / "summary.json").read_text())
    assert (found["status"], found.pop("baseline")) == ("interrupted", variant.baseline.scores)
    left = {"first_step_seconds", "peak_memory_bytes"}
    assert without_times(known | {"status": "interrupted"}).keys() - left == without_times(found).keys() - left
    assert {name: known[name] for name in ("steps", "epochs", "val_loss", "best_step", "stalled", "precision")} == {
        name: found[name] for name in ("steps", "epochs", "val_loss", "best_step", "stalled", "precision")
    }


def test_what_killed_processes_were_writing_goes_with_their_trials(tmp_path: Path) -> None:
    """A trial that still runs writes."""
    trials = Trials(tmp_path, planned(tmp_path, nodes(2), LR), 0.0)
    for number, status in ((0, "completed"), (1, "running")):
        trials.propose(number)
        record.update(record.folder(tmp_path, number), status=status)
        (record.folder(tmp_path, number) / ".best.json.77.88").touch()
    trials.sweep_up()
    assert [file.parent.name for file in tmp_path.rglob(".*.[0-9]*")] == ["0001"]
    trials.clear()
    assert not [*tmp_path.rglob(".*.[0-9]*")]


def test_schedulers_count_the_epochs_that_steps_are(tmp_path: Path) -> None:
    """An epoch of the digits has 23 steps."""
    in_steps = Sweep(replace(BASE, steps=50), (LR,), scheduler=ASHA())
    assert sweep_plan.make(in_steps, lambda: nodes(2), tmp_path).length == 3
    assert planned(tmp_path, nodes(2), LR).length == 4
    assert planned(tmp_path, nodes(2), LR, scheduler=HyperBand(grace_epochs=3)).length == 2
    graced = sweep_plan.make(replace(in_steps, scheduler=HyperBand(grace_epochs=2)), lambda: nodes(2), tmp_path)
    assert graced.length == 2, "50 steps are 3 epochs"
    note = "ASHA (at validations inside epochs too, counted in epochs)"
    inside = replace(in_steps, experiment=replace(in_steps.experiment, validate_every_steps=5))
    for value, said in ((inside, True), (in_steps, False), (replace(inside, scheduler=Complete()), False)):
        assert (note in dict(sweep_plan.make(value, lambda: nodes(2), tmp_path).lines(""))["search"]) is said
    in_units = replace(inside, scheduler=ASHA(grace_steps=10))
    found = sweep_plan.make(in_units, lambda: nodes(2), tmp_path)
    assert found.length == 5 and "counted in units of 10 steps" in dict(found.lines(""))["search"]
    in_epochs = replace(in_units, experiment=replace(BASE, validate_every_steps=10))
    assert sweep_plan.make(in_epochs, lambda: nodes(2), tmp_path).length == 10, "92 steps"
    for every, said in ((None, 23), (12, 12)):
        rare = replace(in_units, experiment=replace(BASE, steps=50, validate_every_steps=every))
        with pytest.raises(UserError, match=f"ASHA compares trials after 10 steps, and they validate after {said}, in"):
            sweep_plan.make(rare, lambda: nodes(2), tmp_path)
    short = replace(in_steps, experiment=replace(BASE, steps=23))
    with pytest.raises(UserError, match="ASHA has nothing to save: all trials get 1 epochs and have no more"):
        sweep_plan.make(short, lambda: nodes(2), tmp_path)


@pytest.mark.parametrize(
    ("resources", "scaling", "axes", "mode", "concurrent", "cpus"),
    [
        (nodes(2), Scaling(), (LR,), "resident", 2, 1.0),
        (nodes(2), Scaling(workers=2), (LR,), "resident", 1, 1.0),
        (nodes(2), Scaling(workers=2), (LR,), "streaming", 1, 1.0),
        (nodes(2), Scaling(workers=4), (LR,), "resident", 1, 0.5),
        (nodes(1), Scaling(workers=2), (LR,), "streaming", 1, 0.5),
        (nodes(2), Scaling(), (WORKERS,), "resident", 1, 2.0),
        (nodes(4), Scaling(), (WORKERS, LR), "resident", 2, 2.0),
        (nodes(2, 2), Scaling(), (LR,), "resident", 4, 1.0),
        (nodes(3, 3), Scaling(workers=2), (LR,), "resident", 3, 1.0),
        (nodes(2, 2), Scaling(cpus_per_worker=1), (LR,), "streaming", 4, 1.0),
        (nodes(8, 1, 1), Scaling(threads_per_worker=4), (LR,), "resident", 2, 4.0),
        (nodes(64, 4, gpus=(0, 4)), Scaling(), (LR,), "resident", 4, 1.0),
        (nodes(64, 4, gpus=(0, 4)), Scaling(workers=2), (LR,), "resident", 2, 1.0),
        (nodes(64), Scaling(cpus_per_worker=1), (LR,), "resident", 4, 1.0),
    ],
)
def test_cpus_are_divided_by_node_among_concurrent_trials(
    tmp_path: Path,
    resources: Resources,
    scaling: Scaling,
    axes: tuple[Axis, ...],
    mode: str,
    concurrent: int,
    cpus: float,
) -> None:
    found = planned(tmp_path, resources, *axes, scaling=scaling, mode=mode)
    assert found.concurrent == concurrent
    assert found.scaling(replace(BASE, scaling=scaling)).cpus_per_worker == cpus


@pytest.mark.parametrize("objective", ["samples_per_second", ("val_loss", "peak_memory_bytes"), "seconds"])
def test_trials_with_a_speed_objective_run_alone(tmp_path: Path, objective: object) -> None:
    alone = planned(tmp_path, nodes(8), LR, objective=objective)
    assert alone.concurrent == 1 and "each trial is measured alone" in dict(alone.lines(""))["at once"]
    together = planned(tmp_path, nodes(8), LR, objective=objective, concurrent=3)
    assert together.concurrent == 3 and "side by side" in dict(together.lines(""))["at once"]
    assert "measured" not in dict(planned(tmp_path, nodes(8), LR, objective="val_loss").lines(""))["at once"]
    small = planned(tmp_path, nodes(8, 4), LR, objective=objective, scaling=Scaling(cpus_per_worker=1.5))
    beside = "one trial at a time, which leaves 6.5 CPUs of its node to other runs of the cluster"
    assert small.concurrent == 1 and dict(small.lines(""))["at once"].endswith(f"; {beside}")
    own = replace(small, share=replace(small.share, where="this machine"))
    assert "each trial is measured alone" in dict(own.lines(""))["at once"], "nobody else is there"
    both = planned(tmp_path, nodes(2), LR, objective=objective, scaling=Scaling(workers=2), mode="streaming")
    assert "each trial is measured alone" in dict(both.lines(""))["at once"], "its reading too"


def test_more_trials_run_at_once_where_nodes_have_joined(tmp_path: Path) -> None:
    fields: dict = {"scaling": Scaling(threads_per_worker=1)}
    now = [nodes(*cpus) for cpus in ((2,), (2, 1), (2, 2, 2), (1,))]
    assert [planned(tmp_path, nodes(2), LR, **fields).at_once(one) for one in now] == [2, 3, 4, 2], "four trials in all"
    limits: list[dict] = [{"concurrent": 1}, {"objective": "seconds"}, {"constraints": ("seconds <= 60",)}]
    for limit in limits:
        assert [planned(tmp_path, nodes(2), LR, **fields, **limit).at_once(one) for one in now] == [1, 1, 1, 1]


@pytest.mark.parametrize("limit", ["seconds <= 60", "samples_per_second > 10", "peak_memory_bytes < 8 GiB"])
def test_trials_with_a_limit_to_speed_run_alone(tmp_path: Path, limit: str) -> None:
    limits = ("val_loss < 9", limit)
    alone = planned(tmp_path, nodes(8), LR, constraints=limits)
    assert alone.concurrent == 1 and "each trial is measured alone" in dict(alone.lines(""))["at once"]
    together = planned(tmp_path, nodes(8), LR, constraints=limits, concurrent=3)
    said = "times and speeds, and limits to them, are those of trials side by side"
    assert together.concurrent == 3 and said in dict(together.lines(""))["at once"]
    assert planned(tmp_path, nodes(8), LR, constraints=limits[:1]).concurrent == 4, "as many as there are"


def test_answer_says_how_many_trials_ran_at_once_in_any_of_its_sessions(tmp_path: Path) -> None:
    wide, narrow = (planned(tmp_path, nodes(8), LR, concurrent=count) for count in (3, 1))
    trials = Trials(tmp_path, wide, 0.0)
    assert trials.propose(0) is not None and trials.write("running")["concurrent"] == 3
    assert [Trials(tmp_path, one, 0.0).answer("running")["concurrent"] for one in (wide, narrow)] == [3, 3]
    assert Trials(tmp_path / "new", narrow, 0.0).answer("running")["concurrent"] == 1


@dataclass(frozen=True)
class Squares(Data):
    """2,000 black squares, of which 500 validate."""

    size: int = 16

    def index(self) -> dict[str, Index]:
        counts, shape = {"train": 1500, "val": 500}, (1, self.size, self.size)
        return {
            split: Index(np.arange(count) % 2, ("a", "b"), shape, split, np.arange(count))
            for split, count in counts.items()
        }

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
        return np.zeros((len(samples), 1, self.size, self.size), np.uint8)


def test_ways_to_read_the_data_share_the_room_of_resident_samples(tmp_path: Path) -> None:
    """A node of 12 MB keeps 3 MB: two of the three sizes, whose images have 0.5, 1.2 and 2 MB."""
    small, sizes = Resources((Node("n", 2, 0, 12_000_000),), "a cluster"), Grid("data.size", (16, 24, 32))

    def made(*axes: Axis, **fields: Any) -> sweep_plan.SweepPlan:
        return sweep_plan.make(Sweep(replace(BASE, data=Squares(**fields)), axes), lambda: small, tmp_path)

    def modes(found: sweep_plan.SweepPlan) -> list[str]:
        return [one.mode for one in found.variants.values()]

    found = made(sizes)
    assert [one.resident_bytes for one in found.variants.values()] == [2000 * size**2 for size in (16, 24, 32)]
    assert modes(found) == ["resident", "resident", "streaming"]
    said = "1 of 3 ways to read the data are streamed: a node keeps 2.9 MiB of all"
    assert dict(found.lines(""))["streamed"] == said
    alone = made(LR, size=32)
    assert modes(alone) == ["resident"] and "streamed" not in dict(alone.lines(""))
    with pytest.raises(UserError, match=r"keeping all ways to read the data resident needs .* leave data\.mode out"):
        made(sizes, mode="resident")
    asked = made(sizes, mode="streaming")
    assert modes(asked) == ["streaming"] * 3 and "streamed" not in dict(asked.lines(""))
    folds = made(Grid("data.folds.fold", (0, 1, 2)), folds=Folds(3), size=32)
    assert modes(folds) == ["resident"] * 3, "they share one copy"
    both = made(Grid("data.folds.fold", (0, 1)), Grid("data.size", (32, 40)), folds=Folds(2))
    assert modes(both) == ["resident", "streaming"] * 2


def test_sweeps_of_versions_without_an_interpolation_find_their_data() -> None:
    keys = [record.reads(Experiment(MLP(), ImageFolder("x", interpolation=how))) for how in ("auto", "bicubic")]
    assert "interpolation" not in json.loads(keys[0]) and json.loads(keys[1])["interpolation"] == "bicubic"
    assert record.reads(Experiment(MLP(), ImageFolder("x", cache_size=3.0))) == keys[0], "what is kept is no other data"
    of_ids = [json.loads(record.reads(Experiment(MLP(), Manifest("t.csv", suffix=end)))) for end in ("", ".jpg")]
    assert "suffix" not in of_ids[0] and of_ids[1]["suffix"] == ".jpg"
    of_masks = [json.loads(record.reads(Experiment(MLP(), MaskFolder("x", missing_mask=one)))) for one in (None, 0)]
    assert "missing_mask" not in of_masks[0] and of_masks[1]["missing_mask"] == 0


@pytest.mark.parametrize("scheduler", [PBT(), HyperBand()])
def test_trials_that_take_turns_wait_for_their_reservation(tmp_path: Path, scheduler: PBT | HyperBand) -> None:
    small = Scaling(workers=2, cpus_per_worker=0.5)
    found = planned(
        tmp_path,
        nodes(8),
        Choice("optimizer.lr", (0.1, 0.2)),
        scaling=small,
        scheduler=scheduler,
        trials=6,
        concurrent=3,
    )
    reserved = found.scaling(replace(BASE, scaling=small))
    assert found.concurrent == 3 and nodes(8).room(reserved.cpus_per_worker or 0) // 2 == 3


def test_all_trials_of_a_sweep_have_room_in_any_order(tmp_path: Path) -> None:
    """By clusters and sweeps drawn at random: `concurrent` trials fit, placed by a scheduler that chooses badly."""
    draw, sweeps = random.Random(3), Counter[str]()
    for _ in range(60):
        resources = nodes(*(draw.choice((1, 2, 3, 4, 8)) for _ in range(draw.randint(1, 3))))
        widths = tuple(sorted(draw.sample((1, 2, 4), draw.randint(1, 2))))
        scaling = Scaling(threads_per_worker=draw.choice((None, 1, 2)))
        mode = draw.choice(("resident", "streaming"))
        try:
            found = planned(tmp_path, resources, Grid("scaling.workers", widths), LR, scaling=scaling, mode=mode)
        except UserError as refused:
            assert re.search(r"a trial with scaling.workers=\d can never start: the run asks for", str(refused))
            continue
        sweeps[mode] += 1
        each = {width: found.scaling(replace(BASE, scaling=replace(scaling, workers=width))) for width in widths}
        for width, one in each.items():
            assert resources.room(one.cpus_per_worker or 0) >= width, "alone"
        for width, one in each.items():  # beside others of its kind
            free = [node.cpus for node in resources.by_node]
            for _ in range(found.concurrent * width):
                room = [place for place, left in enumerate(free) if left + 1e-6 >= (one.cpus_per_worker or 0)]
                assert room, (resources, widths, found.concurrent, one)
                free[draw.choice(room)] -= one.cpus_per_worker or 0
    assert min(sweeps["resident"], sweeps["streaming"]) > 20


@pytest.mark.parametrize(
    ("axes", "scaling", "says"),
    [
        (
            (Grid("scaling.workers", (1, 8)),),
            Scaling(),
            r"scaling\.workers=8 can never start: the run asks for 8 workers",
        ),
        ((Int("scaling.workers", 1, 16, log=True),), Scaling(), r"scaling\.workers=16 can never start"),
        (
            (Grid("scaling.cpus_per_worker", (1.0, 3.0)),),
            Scaling(),
            r"scaling\.cpus_per_worker=3\.0 can never start: 1 worker of 3 CPUs cannot be placed",
        ),
        (
            (Grid("scaling.workers", (1, 2)), Grid("scaling.cpus_per_worker", (1.0, 2.0))),
            Scaling(),
            r"scaling\.workers=2 and scaling\.cpus_per_worker=2\.0 can never start",
        ),
        (
            (Grid("scaling", (Scaling(), Scaling(gpus_per_worker=1))),),
            Scaling(),
            r"gpus_per_worker=1.* can never start: the run asks for 1 GPU and",
        ),
        ((LR,), Scaling(workers=8), r"^the run asks for 8 workers and the cluster has 4"),
        ((LR,), Scaling(workers="1:2"), "the number of workers of a trial is fixed"),
        ((Grid("scaling.workers", (1, "1:2")), LR), Scaling(), "the number of workers of a trial is fixed"),
    ],
)
def test_impossible_trial_is_refused_with_its_axis_value(
    tmp_path: Path, axes: tuple[Axis, ...], scaling: Scaling, says: str
) -> None:
    trials = None if all(isinstance(axis, Grid) for axis in axes) else 2
    with pytest.raises(UserError, match=says):
        planned(tmp_path, nodes(2), *axes, scaling=scaling, trials=trials)


def test_too_many_concurrent_trials_are_refused(tmp_path: Path) -> None:
    assert planned(tmp_path, nodes(4), WORKERS, LR, concurrent=2).concurrent == 2
    with pytest.raises(UserError, match="3 trials at once do not fit, 2 do"):
        planned(tmp_path, nodes(4), WORKERS, LR, concurrent=3)


@pytest.mark.usefixtures("without_ray")
def test_sweep_with_an_impossible_trial_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, no_runs: Path
) -> None:
    file = tmp_path / "wide.py"
    axis = "Grid('scaling.workers', (1, 640))"
    file.write_text(f"from raytrain import *\nsweep = Sweep(Experiment(MLP(), Digits(), batch_size=640), ({axis},))\n")
    said = fails(capsys, "sweep", file, "--out", no_runs)
    assert "a trial with scaling.workers=640 can never start: the run asks for 640 workers" in said
