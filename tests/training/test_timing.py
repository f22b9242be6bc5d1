"""timing: what is due after which step, and the length of a run."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from raytrain import CNN, Checkpoint, Cosine, Digits, Experiment, OneCycle, UserError
from raytrain.training import timing
from raytrain.training.timing import Ask, Timing

BASE = Experiment(model=CNN(channels=(4,)), data=Digits())


@pytest.mark.parametrize("seed", range(30))
def test_validations_and_checkpoints_are_due_at_the_steps_that_a_plain_count_gives(seed: int) -> None:
    draw = random.Random(seed)
    per_epoch, steps = draw.randint(1, 12), draw.randint(1, 60)
    inside, every = draw.choice([None, draw.randint(1, steps)]), draw.choice([None, draw.randint(1, 9)])
    e = replace(BASE, steps=steps, validate_every_steps=inside, checkpoint=Checkpoint(every_steps=every))
    due = Timing(e, per_epoch, 0.0)
    wanted = {step for step in range(1, steps + 1) if step % per_epoch == 0 or (inside and step % inside == 0)}
    wanted.add(steps)
    found, validated = [], 0
    while validated < steps:
        validated += due.remaining(validated, validated)
        found.append(validated)
    assert found == sorted(wanted)
    saves = [step for step in range(1, steps + 1) if due.saves(step)]
    assert saves == [step for step in range(1, steps + 1) if every and step % every == 0 and step not in wanted]
    for step in range(1, steps):  # what a request to stop leaves: the step is done, its validation may not be
        following = min(one for one in wanted if one >= step)
        assert due.remaining(step, max([0, *(one for one in wanted if one < step)])) == following - step


def test_a_run_whose_end_lies_behind_it_validates_at_once() -> None:
    due = Timing(replace(BASE, steps=30), 23, 0.0)
    assert [due.remaining(step, 23) for step in (24, 29, 30, 31, 45, 46)] == [6, 1, 0, 0, 0, 0]
    late = Timing(replace(BASE, epochs=3, max_hours=1.0), 23, 3600.0)
    assert late.out_of_time and late.remaining(24, 23) == 0


def test_rank_0_asks_by_its_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(timing.time, "monotonic", lambda: now[0])
    due = Timing(replace(BASE, epochs=2, max_hours=0.5, checkpoint=Checkpoint(every_minutes=2.0)), 23, 0.0)
    assert due.asks(5, 1.0, False) == Ask.NOTHING and due.asks(5, 1.0, True) == Ask.STOP
    now[0] += 120.0
    assert due.asks(5, 1.0, False) == Ask.SAVE and due.asks(5, 1.0, True) == Ask.SAVE | Ask.STOP
    assert due.asks(23, 1.0, False) == Ask.NOTHING, "the epoch's end has its own checkpoint"
    due.saved()
    assert due.asks(5, 1799.9, False) == Ask.NOTHING and due.asks(5, 1800.0, False) == Ask.END
    assert due.asks(5, 1800.0, True) == Ask.END | Ask.STOP


def test_the_epochs_of_a_run_times_the_steps_of_one_round_to_its_steps() -> None:
    draw = random.Random(0)
    for _ in range(3000):
        per_epoch, steps = draw.randint(1, 20_000), draw.randint(1, 3_000_000)
        e = replace(BASE, steps=steps)
        epochs = e.all_epochs(per_epoch)
        assert round(per_epoch * epochs) == steps == e.all_steps(per_epoch)
        assert math.ceil(epochs) == math.ceil(Fraction(steps, per_epoch))
    assert type(replace(BASE, steps=46).all_epochs(23)) is int, "as a run that is counted in epochs has it"
    assert (replace(BASE, epochs=2).all_epochs(23), replace(BASE, epochs=2).all_steps(23)) == (2, 46)


def test_schedules_end_with_the_run_s_last_step() -> None:
    for steps in (1, 30, 46, 50):
        epochs: Any = replace(BASE, steps=steps).all_epochs(23)
        assert Cosine(final=0.1).factor(steps, 23, epochs) == pytest.approx(0.1, abs=1e-12)
        if steps > 4:
            assert OneCycle(final=0.01).factor(steps - 1, 23, epochs) == pytest.approx(0.01, abs=1e-12)
            assert max(OneCycle().factor(step, 23, epochs) for step in range(steps)) == pytest.approx(1.0, abs=1e-2)
    same = [Cosine(warmup_epochs=0.5).factor(step, 23, 2) for step in range(46)]
    epochs = replace(BASE, steps=46).all_epochs(23)
    assert [Cosine(warmup_epochs=0.5).factor(step, 23, epochs) for step in range(46)] == same


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps = 0 is out of range"),
        ({"steps": 1.5}, "steps = 1.5 is of the wrong type"),
        ({"validate_every_steps": 0}, "validate_every_steps = 0 is out of range"),
        ({"max_hours": 0.0}, "max_hours = 0.0 is out of range"),
        ({"max_hours": -1.0}, "max_hours = -1.0 is out of range"),
        ({"max_hours": math.nan}, "max_hours = nan is out of range"),
    ],
)
def test_a_length_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(BASE, **changes)


def test_minutes_between_checkpoints_are_above_0() -> None:
    with pytest.raises(UserError, match=r"every_minutes = 0\.0 is out of range"):
        Checkpoint(every_minutes=0.0)
