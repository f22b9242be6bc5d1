"""Corrected code for a run: a file that takes the place of the run's own copy, and what it may change."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

from raytrain import config, errors
from raytrain.checkpoint import remote
from raytrain.checkpoint.layout import step_of
from raytrain.experiment import Experiment
from raytrain.run import copies, experiment_file
from raytrain.run.run import Run
from raytrain.user_code import sources

RESUMABLE = (
    *("epochs", "micro_batch_size", "scaling", "parallel", "checkpoint", "clip_norm", "on_nonfinite", "patience"),
    *("data.root", "data.mode", "data.cache", "data.cache_size"),
    *("loggers", "steps", "validate_every_steps", "max_hours"),
)
"""The values that a run which goes on may change, with all that is below them."""


listed = partial(errors.listed, limit=4)
"""Lists tensors or values in a message."""


def may_change(path: str) -> bool:
    """Return whether a run that goes on may change the value at a dotted path; of the sources of `Mixed` what may
    change of a source."""
    path = re.sub(r"^data\.sources\.\d+\.", "data.", path)
    return config.is_below(path, *RESUMABLE)


class Correction:
    """A corrected experiment file that takes the place of a run's own copy, with the modules that it imports.

    Args:
        run: the run.
        file: the experiment file, which is executed.

    Attributes:
        experiment: the run's values, with the classes of the file.
        before: the run's experiment, with the classes of its copy.

    Raises:
        UserError: the file or the run's copy does not run, or the file's classes do not take the run's values.
    """

    def __init__(self, run: Run, file: Path):
        self.run, self.file = run, file
        self.before, self._was = run.experiment, copies.read(run.path)
        self._copy = experiment_file.of_copy(run.path)
        self.experiment, self._own = experiment_file.load_with_code(run.path / "experiment.json", file)
        self.sources = sources.active()
        if self._own is None and self._copy is not None:
            raise experiment_file.not_an_experiment(file, "it defines no `experiment`")

    def activate(self) -> None:
        """Let the names of the run's modules import the new ones."""
        sources.activate(self.sources)

    @property
    def changed(self) -> list[str]:
        """The names of the files that differ from the run's copies."""
        assert self.sources
        old, new = self._was.named if self._was else {}, self.sources.named
        title = {"": self.file.name}
        return [
            title.get(name, name) + ("" if name in old and name in new else " (new)" if name in new else " (removed)")
            for name in sorted(old.keys() | new.keys())
            if name not in old or name not in new or old[name].text != new[name].text
        ]

    def check_values(self, value: Experiment) -> None:
        """Check that the file has no other values than the run's copy, but for those that the run goes on with: a
        value that is changed there would decide the past too, or be ignored.

        Args:
            value: the experiment to go on with.

        Raises:
            UserError: it has others.
        """
        if self._own is None:
            return
        old = config.leaves(self._copy) if self._copy else {}
        new, final = config.leaves(self._own), config.leaves(value)
        found = [path for path in new if new[path] != final.get(path) and (path not in old or new[path] != old[path])]
        if found:
            told = listed(f"{path} {_shown(old.get(path, final.get(path)))} -> {_shown(new[path])}" for path in found)
            flags = " ".join(f"--{path} {_shown(new[path])}" for path in found if may_change(path))
            how = f"give {flags} as well" if all(map(may_change, found)) else "put back what the run began with"
            what = f"the file has other values than the run's copy of it: {told}"
            raise errors.UserError(
                what, self.file, f"{how}, or train a new run with {errors.command('train', self.file)}"
            )

    def refused(self, what: str, where: str) -> errors.UserError:
        """Return the error for new code that the run cannot take."""
        how = f"keep that as it was, or train a new run with {errors.command('train', self.file)}"
        return errors.UserError(what, where, how)

    def note(self) -> str:
        """Return what is replaced, in one line."""
        names = self.changed
        if not names:
            return f"no code is replaced: {self.file.name} and what it imports are as the run's copies of them"
        return f"code replaced after step {self._step():,}: {listed(names)}"

    def save(self) -> None:
        """Put the new code into the run's directory: after a kill at any moment the run has the old code or the new.

        Raises:
            OSError: storage refuses it.
        """
        names = self.changed
        if names and self.sources:
            record = {"step": self._step(), "changed": names, "file": str(self.file.resolve())}
            records = {"replaced": [*copies.replaced(self.run.path), record]}
            text = json.dumps(records, indent=2) + "\n"
            copies.replace(self.run.path, copies.files_of(self.sources) | {sources.REPLACED: text.encode()})

    def _step(self) -> int:
        return step_of(remote.newest(self.run.path)) or 0


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
