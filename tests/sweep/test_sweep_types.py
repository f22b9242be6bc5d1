"""Values of other types than a sweep's fields want: what the message says to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raytrain import Choice, LogUniform, Sweep
from raytrain.errors import UserError

LR = LogUniform("optimizer.lr", 0.001, 0.3)
WRONG: Any = [16, 32]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Choice("batch_size", WRONG), r"values = \[16, 32\] is of the wrong type, in Choice; give a tuple$"),
        (lambda: Choice("batch_size", (16,), when=WRONG), "in Choice; give a tuple or None$"),
        (lambda: Sweep(WRONG, (LR,), trials=2), "in Sweep; give an Experiment$"),
    ],
)
def test_the_type_that_a_field_wants_is_named_in_english(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()
