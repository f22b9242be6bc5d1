"""What was run and where: the experiment's fields that differ from the defaults, code, data, versions and machine."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import Any

from raytrain import errors
from raytrain.checkpoint import layout
from raytrain.files import known_json, size
from raytrain.report.html import public, table
from raytrain.report.trials import number
from raytrain.run.run import Run

_MOST_CLASSES, _MOST_NODES, _MOST_SKIPPED = 12, 4, 8


def tables(run: Run) -> list[str]:
    """Return what a run was made of: tables of its code, its data, and the software and machine that it began on."""
    environment = known_json(run.path / "environment.json")
    parts = {
        "Code": [
            ("command", shlex.join(map(str, found)) if isinstance(found := environment.get("command"), list) else None),
            ("git commit", _commit(environment)),
            ("began", environment.get("began")),
        ],
        "Data": _data(run, environment),
        "Environment": [
            *((name, environment.get(name)) for name in ("raytrain", "python", "torch", "ray", "platform")),
            *_machine(environment.get("resources")),
        ],
    }
    found = []
    for title, facts in parts.items():
        known = [(name, public(str(value))) for name, value in facts if value not in (None, "")]
        found += [table(title, ("fact", "value"), known)] if known else []
    return found


def _commit(environment: dict[str, Any]) -> str | None:
    """Return the commit, and whether the files differed from it, where that is known."""
    commit = environment.get("git_commit")
    said = {True: ", with changes that were not committed", False: ", without changes"}
    changed = environment.get("git_changed")
    return f"{commit}{said.get(changed, '') if isinstance(changed, bool) else ''}" if commit else None


def _data(run: Run, environment: dict[str, Any]) -> list[tuple[str, Any]]:
    data, state = run.experiment.data, {}
    last = str(known_json(run.path / "last.json").get("checkpoint", "none"))
    with contextlib.suppress(errors.UserError, OSError):
        state = layout.load_state(run.checkpoints / Path(last).name)
    counts, prints = (found if isinstance(found := environment.get(key), dict) else {} for key in _SPLITS)
    facts: list[tuple[str, Any]] = [("source", f"{type(data).__name__} {getattr(data, 'root', '')}".strip())]
    facts += [(f"samples of {split}", f"{count:,}") for split, count in counts.items() if number(count) is not None]
    facts += _left_out(known_json(run.path / "skipped.json"), counts)
    classes = state.get("classes")
    if isinstance(classes, list) and classes:
        more = ", ..." if len(classes) > _MOST_CLASSES else ""
        facts.append(("classes", f"{len(classes):,}: {', '.join(map(str, classes[:_MOST_CLASSES]))}{more}"))
    if isinstance(shape := state.get("sample"), list) and shape:
        facts.append(("shape of a sample", " x ".join(map(str, shape))))
    return facts + [(f"fingerprint of {split}", value) for split, value in prints.items()]


def _left_out(skipped: dict[str, Any], counts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return how many samples of each split were left out, and which."""
    facts = []
    for split, samples in skipped.items():
        known = [one for one in samples if isinstance(one, dict)] if isinstance(samples, list) else []
        named = errors.listed((f"{one.get('path')} ({one.get('reason')})" for one in known), _MOST_SKIPPED)
        of = f" of {counts[split]:,}" if number(counts.get(split)) is not None else ""
        facts += [(f"left out of {split}", f"{len(known):,}{of} cannot be read: {named}")] if known else []
    return facts


_SPLITS = ("samples", "data_fingerprint")


def _machine(resources: Any) -> list[tuple[str, Any]]:
    """Return the nodes that the run could use, those of the same kind together."""
    nodes = resources.get("by_node") if isinstance(resources, dict) else None
    kinds: dict[str, int] = {}
    for node in nodes if isinstance(nodes, list) else ():
        if isinstance(node, dict):
            cpus, gpus, memory = (number(node.get(key)) or 0 for key in ("cpus", "gpus", "memory"))
            kind = f"{cpus:g} CPUs, {gpus:g} GPUs, {size(int(memory))}"
            kinds[kind] = kinds.get(kind, 0) + 1
    shown = [f"{count} x {kind}" if count > 1 else kind for kind, count in kinds.items()][:_MOST_NODES]
    return [("machine" if sum(kinds.values()) == 1 else "nodes", "; ".join(shown))] if shown else []
