"""TuneSearch: any searcher of Ray Tune as the search of a sweep."""

from __future__ import annotations

import importlib
import logging
from dataclasses import dataclass
from typing import Any, ClassVar

from raytrain import config, errors
from raytrain.sweep.objective import Objective
from raytrain.sweep.search import NoValues, Proposals, Search
from raytrain.sweep.space import Axis, Int, LogUniform, Uniform
from raytrain.user_code.wrappers import Wrapped, Wraps, target_of, where_is


@dataclass(frozen=True, repr=False)
class TuneSearch(Wrapped, Search):
    """A searcher of Ray Tune: `TuneSearch(HyperOptSearch, n_initial_points=5)`.

    The first argument is a class derived from `ray.tune.search.Searcher`, or a function of your own that returns such a
    searcher, as with a sampler or with `points_to_evaluate`. All other arguments are given by name and become fields. A
    seed that is left out is the experiment's. The axes are the searcher's space: it must take all of them, and none
    under a condition, and it cannot be told what a `Grid` has decided. Searchers are told results when trials have
    ended; of one that failed or broke a constraint, that it failed.

    Nothing of a searcher is saved. When a sweep goes on, a new one is asked for the same proposals again and told the
    same results, in the order of the first time. One that then proposes other values, as without a seed, is told of the
    trials by `add_evaluated_point`, or not at all if it has no such method.
    """

    _wraps: ClassVar[Wraps] = Wraps(
        "a class derived from ray.tune.search.Searcher or a function that returns a searcher",
        "HyperOptSearch",
        ("ray.tune.search", "Searcher"),
        hidden=(
            ("space", "the axes of the sweep are its space"),
            ("metric", "the objective of the sweep is its metric"),
            ("mode", "the objective of the sweep has a direction"),
            ("points_to_evaluate", "write a function of your own that gives it points_to_evaluate, and wrap that"),
            ("evaluated_rewards", "write a function of your own that gives it evaluated_rewards, and wrap that"),
        ),
        derived=("seed", "random_state_seed", "random_state"),
    )
    """What it wraps."""

    def __post_init__(self) -> None:
        config.check(self)

    @property
    def completes(self) -> bool:
        """A searcher of Tune chooses all values of a trial, or none."""
        return False

    def check(self, axes: tuple[Axis, ...], objectives: tuple[Objective, ...]) -> None:
        """Check that it can be made, and takes the axes and the objectives."""
        for axis in axes:
            if axis.when is not None:
                what = f"{type(self).__name__} cannot express the condition of the axis {axis.path}"
                raise errors.UserError(what, "in Sweep.search", "use TPE() or RandomSearch()")
            if axis.finite is None and not isinstance(axis, Int | Uniform | LogUniform):
                what = f"{type(self).__name__} takes no axis of kind {type(axis).__name__}"
                raise errors.UserError(what, f"in {axis.path}", "use another kind of axis, or RandomSearch()")
        self.searcher(axes, objectives, 0)

    def start(self, axes: tuple[Axis, ...], objectives: tuple[Objective, ...], seed: int) -> Proposals:
        """Return a search from its beginning."""
        return _Searching(self.searcher(axes, objectives, seed), axes, objectives)

    def searcher(self, axes: tuple[Axis, ...], objectives: tuple[Objective, ...], seed: int) -> Any:
        """Return a new searcher that has the axes as its space.

        Raises:
            UserError: it cannot be made, or refuses the axes or the objectives.
        """
        name = type(self).__name__
        _check_told(target_of(type(self)))  # before it asks for its library
        logging.getLogger("optuna").setLevel(logging.WARNING)  # it says when it makes a study
        found = self._made("searcher", seed=seed, random_state_seed=seed, random_state=seed)
        inner = getattr(found, "searcher", found)
        _check_told(type(inner))
        known = type(inner).__module__.startswith("ray.tune.") and type(inner).__name__ != "OptunaSearch"
        if len(objectives) > 1 and known:
            what = f"{type(inner).__name__} takes one objective"
            raise errors.UserError(what, "in Sweep.objective", "give it one, or use TPE() or OptunaSearch")
        metric: Any = [one.name for one in objectives]
        mode: Any = [one.mode for one in objectives]
        if len(objectives) == 1:
            [metric], [mode] = metric, mode
        try:
            taken = found.set_search_properties(metric, mode, {axis.path: _domain(axis) for axis in axes})
        except Exception as error:
            how = "use axes of other kinds, or another search"
            said = errors.one_line(f"{type(error).__name__}: {error}", 300).rstrip(".")
            raise errors.UserError(f"{name} cannot search these axes: {said}", "in Sweep.axes", how) from None
        if not taken:
            what = f"{name} does not take the axes of the sweep as its space"
            where = f"in {where_is(target_of(type(self)))}"
            raise errors.UserError(what, where, "let its set_search_properties return True, and give it no space")
        return found


class _Searching(Proposals):
    """A searcher at work.

    Args:
        searcher: Tune's, with its space.
    """

    ordered = True

    def __init__(self, searcher: Any, axes: tuple[Axis, ...], objectives: tuple[Objective, ...]):
        self.searcher, self.axes, self.names = searcher, axes, [objective.name for objective in objectives]
        self.open: dict[int, dict[str, Any]] = {}
        self.foreign: set[int] = set()
        self.untold = 0
        self.note = ""

    def propose(self, number: int, fixed: dict[str, Any]) -> dict[str, Any]:
        """Ask the searcher."""
        found = self._suggested(number)
        if found is None:
            raise NoValues(later=bool(self.open))
        self.open[number] = found
        return found

    def repeat(self, number: int, values: dict[str, Any]) -> None:
        """Ask the searcher again, which should answer as it did; other values are withdrawn."""
        found = self._suggested(number)
        if found != values:
            if found is not None:
                self.searcher.on_trial_complete(str(number), None, error=True)
            self.foreign.add(number)
        self.open[number] = values

    def tell(self, number: int, objective: list[float] | None) -> None:
        """The result of a trial that was proposed or repeated, once."""
        values = self.open.pop(number, None)
        if values is None:
            return
        if number in self.foreign:
            self._tell_foreign(values, objective)
        elif objective is None:
            self.searcher.on_trial_complete(str(number), None, error=True)
        else:
            result = dict(zip(self.names, objective, strict=True)) | {"training_iteration": 1, "done": True}
            self.searcher.on_trial_complete(str(number), result | {"config": self._given(values)}, error=False)

    def _suggested(self, number: int) -> dict[str, Any] | None:
        found = self.searcher.suggest(str(number))
        if not isinstance(found, dict):  # None: not now; FINISHED: no more
            return None
        return {axis.path: _from(axis, found[axis.path]) for axis in self.axes}

    def _given(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return values as the searcher has them."""
        by_path = {axis.path: axis for axis in self.axes}
        return {path: _to(by_path[path], value) for path, value in values.items()}

    def _tell_foreign(self, values: dict[str, Any], objective: list[float] | None) -> None:
        """Tell the result of values that the searcher has not proposed."""
        base = importlib.import_module("ray.tune.search").Searcher
        try:
            if len(self.names) > 1 or type(self.searcher).add_evaluated_point is base.add_evaluated_point:
                raise NotImplementedError
            value = None if objective is None else objective[0]
            self.searcher.add_evaluated_point(self._given(values), value, error=objective is None)
        except NotImplementedError:
            self.untold += objective is not None
            self.note = (
                f"{type(self.searcher).__name__} does not propose the same values again, and has no "
                f"add_evaluated_point: it was not told the results of {self.untold} earlier trials; give it a seed"
            )


def _check_told(target: Any) -> None:
    """Check that a searcher, by its class, learns from results at the end of trials.

    Raises:
        UserError: it is BOHB's, which learns from results at the pauses of HyperBandForBOHB alone.
    """
    bohb = importlib.import_module("ray.tune.search.bohb").TuneBOHB
    if isinstance(target, type) and issubclass(target, bohb):
        what = f"{target.__name__} would draw at random: it learns at pauses, and a sweep tells results at the end"
        raise errors.UserError(what, "in Sweep.search", "use TPE(), with ASHA() to end trials early")


def _domain(axis: Axis) -> Any:
    """Return an axis as a domain of Tune."""
    tune = importlib.import_module("ray.tune")
    if axis.finite is not None:
        return tune.choice(_names(axis))
    if isinstance(axis, Int):
        if axis.step > 1:
            return tune.qrandint(axis.low, axis.high, axis.step)
        return (tune.lograndint if axis.log else tune.randint)(axis.low, axis.high + 1)
    assert isinstance(axis, Uniform | LogUniform)
    if isinstance(axis, LogUniform):
        return tune.loguniform(axis.low, axis.high)
    if axis.step is not None:
        return tune.quniform(axis.low, axis.clip(axis.high), axis.step)
    return tune.uniform(axis.low, axis.high)


def _names(axis: Axis) -> list[Any]:
    """Return the finite values as searchers take them: numbers and strings as they are, others by their labels."""
    labels = config.labels(axis.finite or ())
    return [label if isinstance(label, int | float | str) else str(label) for label in labels]


def _to(axis: Axis, value: Any) -> Any:
    return value if axis.finite is None else _names(axis)[axis.finite.index(value)]


def _from(axis: Axis, value: Any) -> Any:
    """Return the axis' value that a searcher means, whose numbers may be NumPy's or lie between the steps."""
    if axis.finite is not None:
        return axis.finite[_names(axis).index(value)]
    return axis.clip(int(value) if isinstance(axis, Int) else float(value))
