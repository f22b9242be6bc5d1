"""Parts of Ray Tune in a sweep: a searcher's space and its replay, schedulers, callbacks; without a cluster."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raytrain import (
    MLP,
    PBT,
    SGD,
    AdamW,
    Choice,
    Classification,
    Digits,
    Experiment,
    Grid,
    HyperBand,
    Int,
    LogUniform,
    RandomSearch,
    Scaling,
    Sweep,
    TuneCallback,
    TuneScheduler,
    TuneSearch,
    Uniform,
    UserError,
)
from raytrain.run import experiment_file
from raytrain.sweep import record
from raytrain.sweep.attempt import Attempt
from raytrain.sweep.callbacks import _Forward
from raytrain.sweep.schedulers import trained
from raytrain.sweep.search import NoValues
from raytrain.sweep.steady import SCORE, TIME
from raytrain.sweep.sweep_file import load, to_dict
from raytrain.sweep.trial import Trial
from raytrain.sweep.trials import Trials
from raytrain.sweep.tune_callback import Told

tune = pytest.importorskip("ray.tune")
from ray.tune import schedulers  # noqa: E402
from ray.tune.logger import CSVLoggerCallback  # noqa: E402
from ray.tune.schedulers import (  # noqa: E402
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
)
from ray.tune.search import ConcurrencyLimiter, Searcher  # noqa: E402
from ray.tune.search.bayesopt import BayesOptSearch  # noqa: E402
from ray.tune.search.bohb import TuneBOHB  # noqa: E402
from ray.tune.search.hyperopt import HyperOptSearch  # noqa: E402
from ray.tune.search.optuna import OptunaSearch  # noqa: E402

BASE = Experiment(model=MLP(hidden=(8,)), data=Digits(), optimizer=SGD(lr=0.1), epochs=4)
AXES = (
    LogUniform("optimizer.lr", 1e-4, 1.0),
    Choice("optimizer", (SGD(), AdamW())),
    Choice("batch_size", (32, 64)),
    Uniform("clip_norm", 0.5, 2.0, step=0.5),
    Int("epochs", 2, 8, step=2),
)


class Climber(Searcher):
    """Draws around the best values so far: what it proposes depends on the order of all calls."""

    def __init__(self, seed: int | None = None, most: int = 99, width: float = 0.5):
        super().__init__()
        self.random, self.most, self.width = random.Random(seed), most, width
        self.asked: dict[str, dict[str, Any]] = {}
        self.heard: list[Any] = []

    def set_search_properties(self, metric: Any, mode: Any, config: dict, **spec: Any) -> bool:
        self._metric, self._mode, self.space = metric, mode, config
        return True

    def suggest(self, trial_id: str) -> Any:
        if len(self.asked) == self.most:
            return Searcher.FINISHED
        drawn = {path: domain.sample(random_state=self.random.getrandbits(31)) for path, domain in self.space.items()}
        self.asked[trial_id] = drawn | {"clip_norm": 0.5 + 0.5 * (len(self.heard) % 4)}
        return self.asked[trial_id]

    def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
        self.heard.append((trial_id, None if result is None else result[self._metric]))
        self.random.random()


class Rewarded(Climber):
    """Takes results of values that it has not proposed."""

    def add_evaluated_point(self, parameters: dict, value: Any, *more: Any, **_: Any) -> None:
        self.heard.append((tuple(parameters.values()), value))


def seeded_tpe(seed: int = 0, startup: int = 4) -> Searcher:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    return OptunaSearch(sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup))


def two_at_once() -> Searcher:
    return ConcurrencyLimiter(Climber(seed=1), max_concurrent=2)


def no_searcher() -> Any:
    return 3


class Bohb(TuneBOHB):
    """Needs no library to be made."""

    def __init__(self) -> None:
        Searcher.__init__(self)


def two_of_bohb() -> Searcher:
    return ConcurrencyLimiter(Bohb(), max_concurrent=2)


def usual_asha() -> Any:
    return AsyncHyperBandScheduler(metric="val_accuracy", mode="max", grace_period=2)


def downwards(mode: str = "min") -> Any:
    return MedianStoppingRule(mode=mode)


def sweep(search: TuneSearch | RandomSearch, **changes: Any) -> Sweep:
    return Sweep(**{"experiment": BASE, "axes": AXES, "objective": "val_loss", "search": search, "trials": 9} | changes)


def score(values: dict[str, Any]) -> float:
    return abs(values["optimizer.lr"] - 0.1) + (values["batch_size"] == 32)


@pytest.mark.parametrize(
    "search",
    [
        TuneSearch(Climber),
        TuneSearch(seeded_tpe),
        TuneSearch(OptunaSearch),
        TuneSearch(OptunaSearch, seed=8),
        TuneSearch(HyperOptSearch, n_initial_points=3),
    ],
)
def test_searcher_proposes_values_of_the_axes_and_passes_through_json(tmp_path: Path, search: TuneSearch) -> None:
    pytest.importorskip("optuna")
    value = sweep(search)
    (tmp_path / "sweep.json").write_text(json.dumps({"sweep": to_dict(value)}))
    if search.__class__.__name__ in (
        "TuneSearch(OptunaSearch)",
        "TuneSearch(HyperOptSearch)",
    ):  # others are read with a copy of their file
        assert load(tmp_path)[0] == value
    one, other = (search.start(value.axes, value.objectives, 3) for _ in range(2))
    for number in range(9):
        values = one.propose(number, {})
        assert values == other.propose(number, {}), "seeded by the experiment"
        trial = value.trial(values)
        assert trial.optimizer in (SGD(lr=values["optimizer.lr"]), AdamW(lr=values["optimizer.lr"]))
        assert values["clip_norm"] in (0.5, 1, 1.5, 2) and trial.epochs in (2, 4, 6, 8) and trial.batch_size in (32, 64)
        for told in (one, other):
            told.tell(number, [score(values)] if number % 3 else None)


def told_in_order(path: Path, value: Sweep, ends: list[tuple[str, int]]) -> tuple[Trials, list[Any]]:
    """A sweep whose trials are proposed and end in this order, without training."""
    planned: Any = SimpleNamespace(sweep=value, concurrent=1, fingerprints={})
    trials = Trials(path, planned, 0.0)
    trials.replay()
    for what, number in ends:
        folder = record.folder(path, number)
        if what == "ask":
            count, folder = len(trials._told), folder
            values = trials.search.propose(number, {})
            folder.mkdir(parents=True)
            after = {"after": trials._told[trials._noted : count]} if trials._noted < count else {}
            trials._noted = count
            record.update(folder, number=number, values=trials.labels(values), status="running", **after)
            trials.begun.add(number)
            experiment_file.save(value.trial(values), folder / "experiment.json")
        else:
            values = trials._values(record.read(folder)) or {}
            row = {"kind": "epoch", "epoch": 1, "step": 3, "seconds": 1.0, "val_loss": score(values)}
            (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
            record.update(folder, status="completed", ended=ORDER.index((what, number)))
            trials.tell(number)
    return trials, [trials._values(one) for one in trials.records()]


ORDER = [
    *(("ask", 0), ("ask", 1), ("end", 1), ("ask", 2), ("end", 2), ("ask", 3), ("end", 0), ("ask", 4)),
    *(("end", 4), ("end", 3), ("ask", 5), ("end", 5), ("ask", 6), ("ask", 7), ("end", 7), ("end", 6), ("ask", 8)),
]


@pytest.mark.parametrize(
    "search", [TuneSearch(Climber, seed=5), TuneSearch(seeded_tpe), TuneSearch(HyperOptSearch, n_initial_points=2)]
)
@pytest.mark.parametrize("kills", [[4], [7], [2, 9, 10], list(range(1, 17))])
def test_searcher_goes_on_after_kills_as_if_there_had_been_none(
    tmp_path: Path, search: TuneSearch, kills: list[int]
) -> None:
    """Trials end in another order than they began: the order in which a searcher was told is kept."""
    pytest.importorskip("optuna")
    value = sweep(search, axes=AXES[:4])
    _, whole = told_in_order(tmp_path / "whole", value, ORDER)
    found: list[Any] = []
    for begin, end in zip([0, *kills], [*kills, len(ORDER)], strict=True):
        _, found = told_in_order(tmp_path / "cut", value, ORDER[begin:end])
    assert found == whole and len(whole) == 9
    records = [record.read(record.folder(tmp_path / name, n)) for name in ("whole", "cut") for n in range(9)]
    assert records[:9] == records[9:]


@pytest.mark.parametrize(("kind", "knows"), [(Climber, False), (Rewarded, True)])
def test_searcher_that_proposes_other_values_again_is_told_of_points_or_not_at_all(kind: type, knows: bool) -> None:
    value = sweep(TuneSearch(kind))
    first = value.search.start(value.axes, value.objectives, 1).propose(0, {})
    other = value.search.start(value.axes, value.objectives, 2)
    other.repeat(0, first)
    other.tell(0, [0.25])
    other.tell(0, [0.25])
    heard = other.searcher.heard  # type: ignore[attr-defined]
    assert heard[0] == ("0", None) and len(heard) == 1 + knows
    if knows:
        names = tuple("SGD" if v == SGD() else "AdamW" if v == AdamW() else v for v in first.values())
        assert heard[1] == (names, 0.25) and not other.note
    else:
        assert "was not told the results of 1 earlier trials; give it a seed" in other.note


def test_searcher_may_have_no_values_for_now_or_no_more() -> None:
    value = sweep(TuneSearch(two_at_once))
    found = value.search.start(value.axes, value.objectives, 0)
    found.propose(0, {})
    found.propose(1, {})
    with pytest.raises(NoValues) as none:
        found.propose(2, {})
    assert none.value.later
    found.tell(0, [1.0])
    assert found.propose(2, {})
    found = TuneSearch(Climber, most=1).start(value.axes, value.objectives, 0)
    found.propose(0, {})
    found.tell(0, [1.0])
    with pytest.raises(NoValues) as none:
        found.propose(1, {})
    assert not none.value.later


def test_optuna_searcher_takes_three_objectives() -> None:
    pytest.importorskip("optuna")
    value = sweep(TuneSearch(OptunaSearch), objective=("val_loss", "seconds", "peak_memory_bytes"))
    found = value.search.start(value.axes, value.objectives, 0)
    for number in range(12):
        values = found.propose(number, {})
        found.tell(number, [score(values), 1.0, 2.0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: sweep(TuneSearch(Climber), axes=(Grid("epochs", (1, 2)), *AXES[:2])),
            "cannot choose values beside those that epochs decides",
        ),
        (lambda: sweep(TuneSearch(Climber), first=({"batch_size": 32},)), "points_to_evaluate"),
        (
            lambda: sweep(
                TuneSearch(Climber), axes=(AXES[1], Uniform("optimizer.momentum", 0, 1, when=("optimizer", "SGD")))
            ),
            r"TuneSearch\(Climber\) cannot express the condition of the axis optimizer.momentum",
        ),
        (lambda: TuneSearch(Climber, width="wide"), "width = 'wide' is of the wrong type"),
        (lambda: TuneSearch(Climber, pace=3), "Climber has no argument 'pace'"),
        (
            lambda: TuneSearch(OptunaSearch, metric="loss"),
            "OptunaSearch cannot be given metric.*the objective of the sweep",
        ),
        (
            lambda: TuneSearch(OptunaSearch, sampler=object()),
            "sampler = .* of OptunaSearch is no number.*def my_optunasearch",
        ),
        (lambda: TuneSearch(SGD), "TuneSearch takes a class derived from ray.tune.search.Searcher"),
        (lambda: sweep(TuneSearch(no_searcher)), "must return a ray.tune.search.Searcher, got int"),
        (lambda: TuneScheduler(Climber), "TuneScheduler takes a class derived from ray.tune.schedulers.TrialScheduler"),
        (
            lambda: sweep(TuneSearch(Climber), scheduler=TuneScheduler(AsyncHyperBandScheduler, grace_period=-1)),
            "cannot be made: AssertionError: grace_period",
        ),
        (
            lambda: sweep(TuneSearch(Climber), scheduler=TuneScheduler(PopulationBasedTraining)),
            r"PopulationBasedTraining changes trials under way.*use PBT\(\) or PB2\(\)",
        ),
        (
            lambda: sweep(TuneSearch(Climber), objective="seconds", scheduler=TuneScheduler(AsyncHyperBandScheduler)),
            r"TuneScheduler\(AsyncHyperBandScheduler\) compares by a metric of the task",
        ),
        *(
            (
                lambda made=made: sweep(RandomSearch(), scheduler=TuneScheduler(made)),
                rf"TuneScheduler\({made.__name__}\) has a metric or a mode of its own.*leave metric and mode out",
            )
            for made in (usual_asha, downwards)
        ),
        (
            lambda: sweep(RandomSearch(), scheduler=TuneScheduler(HyperBandForBOHB)),
            "HyperBandForBOHB tells a TuneBOHB of each pause, and a sweep has none.*use HyperBand",
        ),
        *(
            (lambda made=made: sweep(TuneSearch(made)), "(?i:bohb) would draw at random: it learns at pauses.*use TPE")
            for made in (TuneBOHB, two_of_bohb)
        ),
        (
            lambda: sweep(TuneSearch(Climber), callbacks=(3,)),
            "each of callbacks must be a TuneCallback of raytrain, got 3",
        ),
        (
            lambda: TuneCallback(no_searcher, pace=3),
            "no_searcher has no argument 'pace'.*; leave it out: it takes no arg",
        ),
        (lambda: TuneCallback(no_searcher).build(), "must return a ray.tune.Callback, got int"),
    ],
)
def test_part_of_tune_that_cannot_work_is_refused_in_a_line(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_searcher_that_takes_numbers_alone_refuses_a_choice() -> None:
    try:
        BayesOptSearch()
    except AssertionError:
        with pytest.raises(UserError, match="cannot be made: AssertionError: BayesOpt must be installed"):
            sweep(TuneSearch(BayesOptSearch))
    else:
        with pytest.raises(UserError, match="cannot search these axes"):
            sweep(TuneSearch(BayesOptSearch))


@pytest.mark.parametrize(("grace", "rungs"), [(1, {1, 3, 9}), (3, {3, 9})])
def test_hyperband_decides_nothing_before_its_grace_epochs(grace: int, rungs: set[int]) -> None:
    """Every other of ten trials of 9 epochs, which fill all brackets of Tune, up to its first pause."""
    scheduler, seen = HyperBand(grace_epochs=grace), set()
    made: Any = scheduler.build(tune.schedulers, (), math.ceil(9 / scheduler.unit_epochs), 0)
    made.set_search_properties(SCORE, "max")
    trials = [object() for _ in range(10)]
    for trial in trials:
        made.on_trial_add(None, trial)
    for trial in trials[::2]:
        times = [trained({"step": epoch * 23}, 23, None, scheduler.unit_epochs) for epoch in range(1, 10)]
        said = [made.on_trial_result(None, trial, {TIME: time, SCORE: 0.5}) for time in times]
        seen.add(1 + said.index(FIFOScheduler.PAUSE))
    assert seen == rungs


def test_hyperband_keeps_a_trial_whose_process_was_lost_in_its_bracket() -> None:
    """Of 9 epochs, the first bracket is 3 whole trials, the second one decides after 3 epochs."""
    made: Any = HyperBand().build(tune.schedulers, (), 9, 0)
    made.set_search_properties(SCORE, "max")
    trials: list[Any] = [type("Trial", (), {"status": "RUNNING", "ERROR": "ERROR"})() for _ in range(8)]
    for trial in trials:
        made.on_trial_add(None, trial)
    trials[0].status = trials[7].status = "ERROR"  # Tune starts them again
    for trial in (trials[0], trials[7]):
        made.on_trial_error(None, trial)
        trial.status = "PENDING"
        made.on_trial_add(None, trial)
    said = [
        [made.on_trial_result(None, trial, {TIME: t, SCORE: 0.5}) for t in (1, 2, 3)]
        for trial in (*trials[:3], trials[7])
    ]
    assert said == [["CONTINUE"] * 3] * 3 + [["CONTINUE", "CONTINUE", "PAUSE"]]


def test_trial_reports_its_time_in_the_units_of_the_scheduler() -> None:
    trial: Any = object.__new__(Trial)
    row = {"kind": "epoch", "epoch": 2, "step": 46, "val_loss": 0.5}
    trial.attempt, trial.rows, trial.node = SimpleNamespace(next=lambda: (row, None)), [], None
    trial.objective, trial.steps_per_epoch, trial.unit = sweep(RandomSearch()).objectives[0], 23, None
    for epochs, wanted in ((1, 2.0), (4, 0.5)):
        trial.unit_epochs = epochs
        assert trial.step() == {"epoch": 2, "step": 46, "val_loss": 0.5, TIME: wanted, SCORE: 0.5}


def test_schedulers_get_the_length_of_a_trial_and_pause_only_together() -> None:
    halving = TuneScheduler(AsyncHyperBandScheduler, grace_period=2)
    made = halving.build(schedulers, (), 7, 0)
    assert (made._max_t, made._time_attr) == (7, "trained") and not halving.together
    assert TuneScheduler(AsyncHyperBandScheduler, max_t=3).build(schedulers, (), 7, 0)._max_t == 3
    assert TuneScheduler(HyperBandScheduler).together and TuneScheduler(MedianStoppingRule).together
    assert not TuneScheduler(FIFOScheduler).together and TuneScheduler(FIFOScheduler, pauses=True).together
    assert TuneScheduler(AsyncHyperBandScheduler, unit_steps=5).unit_steps == 5 and halving.unit_steps is None
    value = sweep(TuneSearch(Climber), scheduler=halving, callbacks=(TuneCallback(CSVLoggerCallback),))
    assert to_dict(value)["scheduler"]["class"] == "raytrain:TuneScheduler(ray.tune.schedulers:AsyncHyperBandScheduler)"
    assert replace(value, trials=3).callbacks == value.callbacks


class Notes(tune.Callback):
    """Notes the names of trials' values."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_trial_start(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        self.seen.append(trial.config["values"])


class OfTune(SimpleNamespace):
    """A trial of Tune's."""

    def __str__(self) -> str:
        return f"trial_{self.number:04d}"


def test_a_callback_has_the_values_of_a_population(tmp_path: Path) -> None:
    tasks = (Classification(), Classification(label_smoothing=0.1))
    value = Sweep(BASE, (Choice("task", tasks), AXES[0]), scheduler=PBT(), trials=4)
    planned: Any = SimpleNamespace(sweep=value, concurrent=1, fingerprints={})
    said: list[str] = []
    forward = _Forward(notes := Notes(), 0, Trials(tmp_path, planned, 0.0), Told(tmp_path, 1), said.append)
    of_tune = OfTune(number=2, config={"task": tasks[1], "optimizer.lr": 0.03})
    forward.on_trial_start(0, [], of_tune)
    of_tune.config = of_tune.config | {"optimizer.lr": 0.02}  # as an exploit does
    forward.on_trial_start(0, [], of_tune)
    label = "Classification(label_smoothing=0.1)"
    assert not said and notes.seen == [{"task": label, "optimizer.lr": rate} for rate in (0.03, 0.02)]


def test_the_memory_of_a_trial_is_that_of_all_its_processes(tmp_path: Path) -> None:
    record.update(tmp_path, peak_memory_bytes=2**50)
    attempt = object.__new__(Attempt)
    attempt.run, attempt.value = tmp_path, replace(BASE, scaling=Scaling(gpus_per_worker=0))
    assert attempt._peak() == 2**50
    record.update(tmp_path, peak_memory_bytes=1)
    assert attempt._peak() > 2**20
