"""The files of sweeps: a Python file that defines `sweep`, and the sweep.json of a sweep's directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from raytrain import config, errors
from raytrain.experiment import Experiment
from raytrain.run import experiment_file
from raytrain.sweep.sweep import Sweep
from raytrain.user_code import hints


def load(path: Path | str) -> tuple[Sweep, Path | None]:
    """Read a sweep from a Python file that defines `sweep`, or from a sweep's directory or its sweep.json.

    Returns:
        The sweep, and the Python file that it or its classes came from.

    Raises:
        UserError: the file is not there, does not run, or holds no sweep.
    """
    path, named = Path(path), Path(path)
    if path.is_dir():
        path = path / "sweep.json"
    if not path.is_file():
        sweeps = hints.files(named, [Path("experiments")], "*.py", assigns="sweep")
        meant = [*sweeps, *hints.files(named, [Path("runs")], "*/sweep.json")]
        others = hints.files(named, [Path("experiments")], "*.py", assigns="experiment")
        if others and not meant:
            raise errors.UserError(
                "no such sweep file",
                path,
                f"{others[0]} holds an experiment: {errors.command('train', others[0])} trains it",
            )
        raise errors.no_such_file(path, "sweep file", meant[:4])
    if path.suffix == ".json":
        try:
            json.loads(path.read_text())
        except (ValueError, OSError, RecursionError):
            raise errors.broken_sweep(path, "it is not JSON") from None
        values, copy = experiment_file.read_json(path)
        if not isinstance(values, dict) or "sweep" not in values:
            raise _holds_no_sweep(path, "it holds no sweep")
        return config.from_dict(Sweep, values["sweep"], path), copy
    if path.suffix != ".py":
        raise _holds_no_sweep(path, f"its name ends in {path.suffix or 'nothing'}")
    module = experiment_file.execute(path)
    found = getattr(module, "sweep", None)
    if not isinstance(found, Sweep) and isinstance(getattr(module, "experiment", None), Experiment):
        raise errors.UserError(
            "this file defines an experiment and no sweep", path, f"run it with {errors.command('train', path)}"
        )
    if not isinstance(found, Sweep):
        raise _holds_no_sweep(
            path,  # raytrain.sweep, the function, may have been imported
            "it defines no `sweep`" if found is None or callable(found) else f"its `sweep` is a {type(found).__name__}",
        )
    return found, path


def is_sweep(path: Path | str) -> bool:
    """Return whether a file holds a sweep; what cannot be read, `load` says. To hold an experiment too is an error."""
    path = Path(path)
    if not path.is_file() or path.suffix != ".py":
        return path.name == "sweep.json"
    module = experiment_file.execute(path)
    found = isinstance(getattr(module, "sweep", None), Sweep)
    if found and isinstance(getattr(module, "experiment", None), Experiment):
        raise experiment_file.has_both(path)
    return found


def to_dict(sweep: Sweep) -> dict[str, Any]:
    """Return the sweep as its directory keeps it.

    Raises:
        UserError: it holds what JSON cannot.
    """
    try:
        values = config.to_dict(sweep)
        json.dumps(values)
        return values
    except (TypeError, ValueError) as error:
        raise experiment_file.cannot_save(str(error)) from None


def _holds_no_sweep(path: Path, why: str) -> errors.UserError:
    return errors.UserError(
        f"not a sweep: {why}", path, "give a .py file that ends in `sweep = Sweep(...)`, or a sweep's directory"
    )
