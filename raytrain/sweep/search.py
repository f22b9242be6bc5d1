"""Searches choose the values of trials: random search, and the base of searches that learn from earlier trials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raytrain import order
from raytrain.sweep.objective import Objective
from raytrain.sweep.space import Axis


@dataclass(frozen=True)
class Search:
    """The base of all searches. Subclass it, as a frozen dataclass, to bring your own."""

    @property
    def completes(self) -> bool:
        """Whether it can choose the rest of a trial's values where some are decided."""
        return True

    @property
    def learns(self) -> bool:
        """Whether its proposals depend on the results that it is told."""
        return True

    def check(self, axes: tuple[Axis, ...], objectives: tuple[Objective, ...]) -> None:
        """Check that it can search these axes.

        Raises:
            UserError: it cannot.
        """

    def start(self, axes: tuple[Axis, ...], objectives: tuple[Objective, ...], seed: int) -> Proposals:
        """Return a search from its beginning.

        Raises:
            NotImplementedError: always, in the base class.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a start(axes, objectives, seed)")


class Proposals:
    """One search under way. A trial's values are by the paths of the axes.

    Attributes:
        ordered: whether its proposals depend on the order in which it was told results before, which is then kept.
        note: what to tell the user after earlier trials were repeated; empty for nothing.
    """

    ordered: bool = False
    note: str = ""

    def propose(self, number: int, fixed: dict[str, Any]) -> dict[str, Any]:
        """Return the values of trial `number`: those in `fixed`, which the grid or the user has decided, and those of
        all other axes. What it returns for an axis that does not exist beside the others is left out.

        Raises:
            NoValues: there are none for now, or no more.
        """
        raise NotImplementedError

    def repeat(self, number: int, values: dict[str, Any]) -> None:
        """Note a proposal from before the sweep was interrupted."""

    def tell(self, number: int, objective: list[float] | None) -> None:
        """The result of a trial; None without one: out of memory, not finite, crashed, a constraint broken."""


class NoValues(Exception):
    """A search has no values for a further trial.

    Args:
        later: whether it may have some when a trial under way has ended.
    """

    def __init__(self, later: bool):
        super().__init__("the search has no values for a further trial")
        self.later = later


@dataclass(frozen=True)
class RandomSearch(Search):
    """Draws each value from its axis. What trial k gets is a function of the seed and k alone, so that a longer sweep
    begins with the trials of a shorter one. Axes of kind `Grid` alone make it a grid search."""

    @property
    def learns(self) -> bool:
        """Results change nothing."""
        return False

    def start(self, axes: tuple[Axis, ...], objectives: tuple[Objective, ...], seed: int) -> Proposals:
        """Return a search from its beginning."""
        return _Drawn(axes, seed)


class _Drawn(Proposals):
    def __init__(self, axes: tuple[Axis, ...], seed: int):
        self.axes, self.seed = axes, seed

    def propose(self, number: int, fixed: dict[str, Any]) -> dict[str, Any]:
        """A hash of (seed, trial, axis) is the quantile of the axis."""
        return {
            axis.path: fixed[axis.path]
            if axis.path in fixed
            else axis.draw(order.key(self.seed, _SWEEP, number, place) / 2**64)
            for place, axis in enumerate(self.axes)
        }


_SWEEP = 0x53574545
"""Keeps the draws of sweeps apart from those of training."""
