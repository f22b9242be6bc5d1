"""Experiments in files: the user's Python file, a run's JSON."""

from __future__ import annotations

import importlib
import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from raytrain import config, errors
from raytrain.data.manifest import TABLES
from raytrain.experiment import Experiment
from raytrain.files import is_url, write_atomically
from raytrain.parallel import DDP, Deterministic
from raytrain.run import copies, not_loaded
from raytrain.user_code import hints, places, sources
from raytrain.user_code.upgrades import old_argument, upgrade

HISTORY = "history"
"""In the best.json of an older version's sweep whose scheduler changed values on the way. The experiment beside it has
the last values alone; since then it has all of them, as `stages`."""


_loading: list[Path] = []
"""The experiment files that are being imported."""


def _convert_deterministic(value: bool, arguments: dict[str, Any]) -> None:
    """Replace `deterministic` of 0.1, a field beside DDP, by the strategy; an axis may set it beside either."""
    parallel = arguments.get("parallel", DDP())
    if value and isinstance(parallel, DDP):
        arguments["parallel"] = Deterministic(reduction=parallel.reduction)
    elif not value and isinstance(parallel, Deterministic):
        arguments["parallel"] = DDP(reduction=parallel.reduction)
    elif value and not isinstance(parallel, Deterministic):
        what = f"deterministic=True does not work with parallel={type(parallel).__name__}(...)"
        raise errors.UserError(what, "in Experiment", "write `parallel=Deterministic()`")


def _is_deterministic(experiment: Experiment) -> bool:
    return isinstance(experiment.parallel, Deterministic)


old_argument("deterministic", _convert_deterministic, _is_deterministic)(Experiment)


def load(path: Path | str, alone: bool = False) -> tuple[Experiment, Path | None]:
    """Read an experiment from a Python file that defines `experiment`, or from a run's experiment.json.

    Args:
        alone: whether the file may hold no sweep besides, which might be what is meant.

    Returns:
        The experiment, and the Python file that it or its classes came from.

    Raises:
        UserError: the file is not there, is a URL, does not run, or holds no experiment.
    """
    if is_url(path):
        what = "an experiment must be a file of this machine, got a URL"
        raise errors.UserError(
            what, str(path).partition("?")[0], "copy it here; a run at a URL goes on with `raytrain resume URL`"
        )
    path = Path(path)
    if os.path.isfile(path / "experiment.json"):
        path = path / "experiment.json"
    if not os.path.isfile(path):
        runs = hints.files(path, [Path("runs")], "*/experiment.json")
        meant = [*hints.files(path, [Path("experiments")], "*.py", assigns="experiment"), *runs]
        sweeps = hints.files(path, [Path("experiments")], "*.py", assigns="sweep")
        if sweeps and not meant:
            how = f"{sweeps[0]} holds a sweep: {errors.command('sweep', sweeps[0])} runs it"
            raise errors.UserError("no such experiment file", path, how)
        if os.path.isdir(path):
            how = f"`raytrain new {shlex.quote(str(path))}` writes an experiment file for a folder of images"
            how = f"{errors.did_you_mean(meant[:4])}{how}"
            raise errors.UserError("this is a folder, and not an experiment file", path, how)
        raise errors.no_such_file(path, "experiment file", meant[:4])
    if path.suffix == ".json":
        return _load_json(path)
    if path.suffix.lower() in TABLES:
        how = f"{errors.command('new', path)} writes an experiment file for a table of images"
        raise errors.UserError("this is a table, and not an experiment file", path, how)
    if path.suffix != ".py":
        raise not_an_experiment(path, f"its name ends in {path.suffix or 'nothing'}")
    module = execute(path)
    found = getattr(module, "experiment", None)
    with_sweep = type(getattr(module, "sweep", None)).__name__ == "Sweep"
    if isinstance(found, Experiment) and with_sweep and alone:
        raise has_both(path)
    if found is None and with_sweep:
        raise errors.UserError(
            "this file defines a sweep and no experiment", path, f"run it with {errors.command('sweep', path)}"
        )
    if not isinstance(found, Experiment):
        raise not_an_experiment(
            path, "it defines no `experiment`" if found is None else f"its `experiment` is a {type(found).__name__}"
        )
    return found, path


def has_both(path: Path) -> errors.UserError:
    """Return the error for a file of which it is unclear whether to run its sweep or its experiment."""
    how = f"{errors.command('sweep', path)} runs the sweep; else give the experiment another name there"
    return errors.UserError("this file has both a `sweep` and an `experiment`", path, how)


def load_with_code(path: Path, file: Path) -> tuple[Experiment, Experiment | None]:
    """Read the values of a run's experiment.json with the classes of another experiment file, whose modules are active
    from then on.

    Returns:
        That experiment, and the one that the file itself defines, alone or in a sweep; None if it defines none.

    Raises:
        UserError: the file is not there or does not run, or its classes do not take the run's values.
    """
    values = upgrade(_json(path))
    if not os.path.isfile(file):
        meant = hints.files(file, [Path("experiments")], "*.py", assigns="experiment")
        raise errors.no_such_file(file, "experiment file", meant)
    if file.suffix != ".py":
        raise not_an_experiment(file, f"its name ends in {file.suffix or 'nothing'}")
    module = execute(file)
    for name in sorted({*_own_modules(values)} - {"experiment"}):
        _import(name, file, copied=False)
    return config.from_dict(Experiment, values, file), _defined(module)


def of_copy(run: Path) -> Experiment | None:
    """Return the experiment that a run's copy of the experiment file defines, before flags changed it; None if there is
    no copy or it defines none. The run's modules are active from then on.

    Raises:
        UserError: the copy does not run.
    """
    found = copies.read(run)
    if found is None or found.experiment is None:
        return None
    sources.activate(found)
    return _defined(_import(config.EXPERIMENT_MODULE, run / sources.COPY, copied=True))


def _defined(module: ModuleType) -> Experiment | None:
    found = getattr(module, "experiment", None) or getattr(getattr(module, "sweep", None), "experiment", None)
    return found if isinstance(found, Experiment) else None


def save(experiment: Experiment, path: Path) -> None:
    """Write the experiment as JSON."""
    write_atomically(path, to_json(experiment))


def to_json(experiment: Experiment) -> str:
    """Return the experiment as JSON text.

    Raises:
        UserError: it holds a value that JSON cannot hold, or a class that could not be found again.
    """
    try:
        return json.dumps(config.to_dict(experiment), indent=2) + "\n"
    except (TypeError, ValueError) as error:
        raise cannot_save(str(error)) from None


def _load_json(path: Path) -> tuple[Experiment, Path | None]:
    values, copy = read_json(path)
    return config.from_dict(Experiment, values, path), copy


def read_json(path: Path) -> tuple[Any, Path | None]:
    """Read the values of a saved experiment or sweep for `config.from_dict`, and import the modules of its classes from
    the copies beside it.

    Returns:
        The values, and the copy of the experiment file, where there is one.

    Raises:
        UserError: it is not JSON, or a module does not load, or it does not hold all values of a trial.
    """
    values, copy = upgrade(_json(path)), path.with_name(sources.COPY)
    if isinstance(values, dict) and HISTORY in values:
        what = "these are the last values of a trial that changed them on the way, and would train other weights"
        how = f"take the weights of the sweep's best trial; or remove {HISTORY!r}, to train with these values alone"
        raise errors.UserError(what, path, how)
    modules = set(_own_modules(values))
    if modules:
        found = copies.read(path.parent)
        sources.activate(found)
        if "experiment" in modules and (found is None or found.experiment is None or _is_main(copy)):
            sys.modules[config.EXPERIMENT_MODULE] = sys.modules["__main__"]  # a script looks at a run of its own
        for name in sorted(modules):
            # An older run has the copy of an imported module in place of the experiment file.
            known = name in sys.modules or (found is not None and found.find(name) is not None)
            _import(name if known and name != "experiment" else config.EXPERIMENT_MODULE, copy, copied=True)
    return values, copy if copy.is_file() else None


def _json(path: Path) -> Any:
    try:
        values = json.loads(path.read_text())
    except (ValueError, OSError, RecursionError) as error:
        raise not_an_experiment(path, str(error)) from None
    if isinstance(values, list):
        what = "this is a list, and the experiment.json of a run is an object"
        raise errors.UserError(what, path, "write a table of images as CSV, or as JSON lines in a .jsonl file")
    return values


def _is_main(copy: Path) -> bool:
    """Return whether the file is the main module of this process, which must not run twice."""
    main = getattr(sys.modules["__main__"], "__file__", None)
    return main is not None and Path(main).is_file() and Path(main).read_bytes() == copy.read_bytes()


def _own_modules(values: Any) -> Iterator[str]:
    """Yield the modules of all classes in saved JSON that are not raytrain's own."""
    if isinstance(values, list):
        for item in values:
            yield from _own_modules(item)
    elif isinstance(values, dict):
        yield from config.modules_of(str(values.get("class", "raytrain:")))
        for item in values.values():
            yield from _own_modules(item)


def execute(path: Path) -> ModuleType:
    """Import a Python file as the module that holds experiments, with the modules below its folder that it imports.
    Their text counts, never old bytecode.

    Raises:
        UserError: it does not run, or imports too much.
    """
    found, before = sources.Sources.of_file(path), set(sys.modules)
    sources.activate(found)
    module = _import(config.EXPERIMENT_MODULE, path, copied=False)
    found.add_imported(before)
    return module


def _import(name: str, path: Path, copied: bool) -> ModuleType:
    """Import one of the active modules.

    Args:
        path: the experiment file.
        copied: whether it is a run's copy.
    """
    _loading.append(path)
    try:
        return importlib.import_module(name)
    except errors.UserError as error:
        not_loaded.place(error, places.line_of(error))
        raise
    except (Exception, SystemExit) as error:
        raise not_loaded.explained(error, path, copied) from None
    finally:
        _loading.pop()


def refuse_while_loading() -> None:
    """Keep a script that ends in `raytrain.train(...)` from training while raytrain imports it for its experiment.

    Raises:
        UserError: an experiment file is being loaded.
    """
    if _loading:
        raise errors.UserError(
            "the experiment file starts a training while it is read",
            _loading[-1],
            "put that under `if __name__ == '__main__':`",
        )


def not_an_experiment(path: Path, why: str) -> errors.UserError:
    """Return the error for a file that defines no experiment."""
    return errors.UserError(
        f"not an experiment: {why}",
        path,
        "give a .py file that ends in `experiment = Experiment(...)`, or the experiment.json of a run",
    )


def cannot_save(reason: str) -> errors.UserError:
    """Return the error for an experiment that is no JSON."""
    return errors.UserError(
        f"the experiment cannot be saved as JSON: {reason}",
        "in a field of a class of yours",
        "let fields hold numbers, strings, booleans, None, tuples and dataclasses",
    )
