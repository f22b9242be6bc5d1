"""The files that Ray would send as a job's working directory."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from raytrain.driver.ray_internals.versions import private


def packed(folder: Path, excludes: Sequence[str], found: Callable[[Path], None]) -> None:
    """Call `found` with each file and folder that Ray would send as a job's working directory, by its own rules
    (.gitignore, .rayignore, symbolic links followed); by those of `excludes` alone where Ray is not as it was."""
    packaging = private("ray._private.runtime_env.packaging", "_get_excludes", "_dir_travel")
    if packaging is not None:
        silent = logging.getLogger("raytrain.silent")
        silent.setLevel(logging.CRITICAL)
        ignored = os.environ.get("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "0") != "1"
        rules = [packaging._get_excludes(folder, [*excludes])]
        return packaging._dir_travel(folder, rules, found, include_gitignore=ignored, logger=silent)
    for directory, names, files in os.walk(folder):
        names[:] = [name for name in names if name not in excludes]
        for name in files:
            found(Path(directory, name))
