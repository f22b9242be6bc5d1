"""Why an experiment file does not load: the error, with the user's line and what to write there."""

from __future__ import annotations

import dataclasses
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType

from raytrain import config, errors
from raytrain.data.imagefolder import ImageFolder
from raytrain.experiment import Experiment
from raytrain.models import MLP
from raytrain.user_code import hints, parts, places, python_files, sources


def place(error: errors.UserError, line: str) -> None:
    """Add the user's file and line to an error that names no line of that file."""
    if line.rpartition(":")[0] not in error.where:
        error.where = f"{error.where} ({line})" if error.where else line


def explained(error: BaseException, path: Path, copied: bool) -> errors.UserError:
    """Return the error for a module that raised another one while it was imported.

    Args:
        path: the experiment file.
        copied: whether it is a run's copy.
    """
    if isinstance(error, TypeError) and (better := _wrong_class(error) or _unknown_field(error)):
        place(better, places.line_of(error))
        return better
    why = str(error.msg) if isinstance(error, SyntaxError) else places.reason(error)
    where, how = places.line_of(error) or str(path), "correct that line and try again"
    module = (getattr(error, "name", None) or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if copied and isinstance(error, FileNotFoundError):
        how = "a run keeps copies of Python files only: restore the file that it reads"
    elif copied and isinstance(error, ModuleNotFoundError):
        how = f"install it, or copy the file or the folder {module} into {path.with_name(sources.MODULES)}"
    elif module in sys.stdlib_module_names and any(path.resolve().parent.glob(f"{module}.py")):
        how = f"rename {module}.py: Python's own module has that name"
    elif copied:  # `resume --experiment` needs the copy too, to compare what it defines
        how = f"correct that line in the run's copy, {path.parent / (places.copy_of(where) or path.name)}"
    elif similar := _similar(error):
        why, how = re.sub(r" \(/.*\)$", "", why), errors.did_you_mean(similar).strip()
    return errors.UserError(f"the experiment file does not load: {why}", where, how)


def _similar(error: BaseException) -> list[str]:
    """Return the names of a module that are spelled like the one which an import or an attribute asked for in vain."""
    asked = re.search(
        r"cannot import name '(\w+)' from '([\w.]+)'|module '([\w.]+)' has no attribute '(\w+)'", str(error)
    )
    name, module = (asked[1] or asked[4], sys.modules.get(asked[2] or asked[3])) if asked else ("", None)
    return errors.close(name, getattr(module, "__all__", dir(module))) if module else []


def _unknown_field(error: TypeError) -> errors.UserError | None:
    """Return the error for an argument that a part of an experiment does not have, with the field that it may mean."""
    found = re.search(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    scopes = [frame.f_globals for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = [scope for scope in scopes if python_files.is_own(str(scope.get("__file__")))]
    if not found or not own:
        return None
    modules = [value for value in own[-1].values() if isinstance(value, ModuleType)]
    for kind in [*own[-1].values(), *(getattr(module, found[1], None) for module in modules)]:
        if isinstance(kind, type) and kind.__name__ == found[1] and dataclasses.is_dataclass(kind):
            known = [field.name for field in dataclasses.fields(kind) if field.init]
            meant = _fields_like(found[2]) if kind is Experiment else ()
            return errors.unknown_field(found[2], known, f"in {found[1]}", meant)
    return None


def _fields_like(name: str) -> list[str]:
    """Return the fields of an experiment, and of its parts, that a name may mean: `scaling=Scaling(workers=...)`."""
    if name in ("loss", "loss_fn", "criterion"):
        return ["task=Classification(...)", "a task of your own with a `loss`"]
    example = Experiment(MLP(), ImageFolder("images"))
    found: dict[str, None] = {}
    for path in hints.flags(name, config.paths(example)):
        heads = path.split(".")
        heads = heads[: heads.index(name) + 1] if name in heads else heads
        written = heads[0] if len(heads) == 1 else f"{heads[-1]}=..."
        for depth in range(len(heads) - 1, 0, -1):
            part = config.get(example, ".".join(heads[:depth]))
            written = f"{heads[depth - 1]}={type(part).__name__}({written})"
        found[written] = None
    return list(found)


def _wrong_class(error: TypeError) -> errors.UserError | None:
    """Return the error for a class that is not made as it must be, where that explains why a call of it failed."""
    if "cannot inherit non-frozen dataclass" in str(error):
        how = "write `@dataclass(frozen=True)`"
        return errors.UserError("a part of an experiment must be a frozen dataclass", "", how)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)] if "__init__()" in str(error) else []
    own = [frame for frame in frames if python_files.is_own(frame.f_code.co_filename)]
    for kind in own[-1].f_globals.values() if own else ():
        if isinstance(kind, type):
            try:
                parts.check_class(kind)
            except errors.UserError as better:
                return better
    return None
