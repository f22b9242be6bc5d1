"""Values of other types than a sweep's fields want: what the message says to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ray import tune
from ray.tune.logger import CSVLoggerCallback
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch

from raytrain import CNN, TPE, Choice, Digits, Experiment, LogUniform, Sweep
from raytrain.errors import UserError

LR = LogUniform("optimizer.lr", 0.001, 0.3)
WRONG: Any = [16, 32]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Choice("batch_size", WRONG),
            r"values = \[16, 32\] is of the wrong type, in Choice; write values=\(16, 32\)$",
        ),
        (lambda: Choice("batch_size", (16,), when=WRONG), "in Choice; give a tuple or None$"),
        (lambda: Sweep(WRONG, (LR,), trials=2), "in Sweep; give an Experiment$"),
    ],
)
def test_the_type_that_a_field_wants_is_named_in_english(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("search", OptunaSearch, r"write `from raytrain import TuneSearch` and search=TuneSearch\(OptunaSearch\)$"),
        ("search", OptunaSearch(), r"got an object of class ray.tune.*and search=TuneSearch\(OptunaSearch\)$"),
        ("search", TPE, r"search must be a Search of raytrain, got the class raytrain.TPE, in Sweep; write search=TPE"),
        ("search", "tpe", r"got 'tpe', in Sweep; write `from raytrain import TPE` and search=TPE\("),
        ("scheduler", ASHAScheduler(), r"write `from raytrain import ASHA` and scheduler=ASHA\("),
        ("scheduler", TPE(), r"did you mean search=TPE\("),
        (
            "axes",
            (tune.uniform(0.1, 1.0),),
            r"each of axes must be an Axis of raytrain, .*; write axes=\(",
        ),
        ("callbacks", (CSVLoggerCallback(),), r"and callbacks=\(TuneCallback\(CSVLoggerCallback\),\)$"),
    ],
)
def test_a_part_of_another_kind_is_named_with_what_to_write(field: str, value: Any, message: str) -> None:
    base: dict[str, Any] = {"experiment": Experiment(CNN(), Digits()), "axes": (LR,), "trials": 2}
    with pytest.raises(UserError, match=message) as caught:
        Sweep(**(base | {field: value}))
    assert "\n" not in str(caught.value)
