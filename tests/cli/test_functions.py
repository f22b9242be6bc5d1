"""Commands as functions of Python: arguments of the wrong kind. No Ray is started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import raytrain
from raytrain import CNN, Digits, Experiment
from raytrain.errors import UserError
from raytrain.run.run import Run

EXPERIMENT = Experiment(CNN(), Digits())


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (raytrain.train, ("exp.py",), "train takes an Experiment, got 'exp.py'; import one from its file, as in `from"),
        (
            raytrain.train,
            ("runs/amp/best.json",),
            "on the command line `raytrain train runs/amp/best.json` takes a file",
        ),
        (raytrain.train, (CNN(),), "train takes an Experiment, got CNN; import one"),
        (raytrain.sweep, (EXPERIMENT,), r"sweep takes a Sweep, or the directory of one, got Experiment; write Sweep\("),
        (raytrain.sweep, ("sweep.py",), r"sweep takes a Sweep, or the directory of one, got 'sweep.py'; write"),
        (
            raytrain.resume,
            (EXPERIMENT,),
            "this is no run, but a value of type Experiment; give what raytrain.train returns",
        ),
        (raytrain.evaluate, (5,), "this is no run, but a value of type int"),
        (raytrain.predict, ("photos", Run.__new__(Run)), "the run comes first in predict, and its images second"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_named(function: Callable, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        function(*arguments)
