"""TPE: values that earlier trials make likely to be good (Bergstra et al., 2011), by Optuna."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from raytrain import config, errors, order
from raytrain.config import at_least
from raytrain.sweep.objective import Objective
from raytrain.sweep.search import Proposals, Search
from raytrain.sweep.space import Axis, Int, LogUniform, Uniform, present


@dataclass(frozen=True)
class TPE(Search):
    """Optuna's tree-structured Parzen estimator, for one objective or several. Trials that ran out of memory, diverged,
    crashed or broke a constraint count as worse than all others."""

    startup: int = 8
    """Trials drawn at random before the estimate is used."""

    def __post_init__(self) -> None:
        config.check(self, startup=at_least(1))

    def check(self, axes: tuple[Axis, ...], objectives: tuple[Objective, ...]) -> None:
        """Check that Optuna is installed, and that it supports the axes."""
        if importlib.util.find_spec("optuna") is None:
            raise errors.extra_missing("TPE", "optuna", "sweep")
        for axis in axes:
            if axis.finite is None and not isinstance(axis, Int | Uniform | LogUniform):
                raise errors.UserError(
                    f"TPE takes no axis of kind {type(axis).__name__}",
                    f"in {axis.path}",
                    "use another kind of axis, or RandomSearch()",
                )

    def start(self, axes: tuple[Axis, ...], objectives: tuple[Objective, ...], seed: int) -> Proposals:
        """Return a search with a study in memory: the results are in the trials' directories."""
        return _Study(self, axes, objectives, seed)


class _Study(Proposals):
    def __init__(self, search: TPE, axes: tuple[Axis, ...], objectives: tuple[Objective, ...], seed: int):
        import optuna  # a second: other searches do not need it

        optuna.logging.set_verbosity(logging.CRITICAL)
        self.optuna, self.axes, self.seed = optuna, axes, seed
        self.sampler = optuna.samplers.TPESampler
        self.options: dict[str, Any] = {"n_startup_trials": search.startup, "constant_liar": True}
        self.study = optuna.create_study(
            directions=["maximize" if objective.mode == "max" else "minimize" for objective in objectives]
        )
        self.signs = [1 if objective.mode == "max" else -1 for objective in objectives]
        self.asked: dict[int, Any] = {}
        self.found: list[list[float]] = []

    def propose(self, number: int, fixed: dict[str, Any]) -> dict[str, Any]:
        """Ask the study; its generator is seeded by the trial, so that nothing of it need be saved."""
        self.study.sampler = self.sampler(seed=order.key(self.seed, number) % 2**32, **self.options)
        return self._ask(number, fixed)

    def repeat(self, number: int, values: dict[str, Any]) -> None:
        """The same trial again, without asking."""
        self._ask(number, values)

    def tell(self, number: int, objective: list[float] | None) -> None:
        """A trial that gave nothing is `pruned`, which TPE takes for worse than those that ended."""
        trial = self.asked.pop(number, None)
        if trial is None:
            return
        state = self.optuna.trial.TrialState
        if objective is not None:
            self.found.append(objective)
            self.study.tell(trial, objective)
        elif len(self.signs) == 1:
            self.study.tell(trial, state=state.PRUNED)
        elif self.found:  # Optuna prunes no trials of several objectives: what is worst in each stands for it
            worst = [sign * min(sign * value for value in column) for sign, column in self._columns()]
            self.study.tell(trial, worst)
        else:
            self.study.tell(trial, state=state.FAIL)

    def _columns(self) -> Iterable[tuple[int, tuple[float, ...]]]:
        return zip(self.signs, zip(*self.found, strict=True), strict=True)

    def _ask(self, number: int, fixed: dict[str, Any]) -> dict[str, Any]:
        """Return a trial's values: the fixed ones, and the study's for the other axes that exist beside them."""
        if fixed:
            self.study.enqueue_trial({path: self._to(path, value) for path, value in fixed.items()})
        self.asked[number] = trial = self.study.ask()
        values: dict[str, Any] = {}
        waiting = list(self.axes)
        while waiting:  # an axis after the one that its condition names
            paths = {axis.path for axis in waiting}
            axis = next(axis for axis in waiting if axis.when is None or axis.when[0] not in paths)
            waiting.remove(axis)
            if axis.path in present(self.axes, {**values, axis.path: None}):
                values[axis.path] = self._suggested(trial, axis)
        return {axis.path: values[axis.path] for axis in self.axes if axis.path in values}

    @staticmethod
    def _suggested(trial: Any, axis: Axis) -> Any:
        if axis.finite is not None:
            return axis.finite[trial.suggest_categorical(axis.path, range(len(axis.finite)))]
        if isinstance(axis, Int):
            top = axis.low + (axis.high - axis.low) // axis.step * axis.step
            return trial.suggest_int(axis.path, axis.low, top, log=axis.log, step=axis.step)
        assert isinstance(axis, Uniform | LogUniform)
        if isinstance(axis, LogUniform) or axis.step is None:
            return trial.suggest_float(axis.path, axis.low, axis.high, log=isinstance(axis, LogUniform))
        return axis.clip(trial.suggest_float(axis.path, axis.low, axis.clip(axis.high), step=axis.step))

    def _to(self, path: str, value: Any) -> Any:
        """Optuna's form of a value: its position among finite ones."""
        axis = next(axis for axis in self.axes if axis.path == path)
        return value if axis.finite is None else axis.finite.index(value)
