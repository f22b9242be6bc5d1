"""The commands of `raytrain cluster`."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from raytrain import cluster as files
from raytrain import errors


def cluster(which: str, arguments: tuple[Any, ...]) -> int | None:
    """Run one command of `raytrain cluster`: init, check or up."""
    return {"init": _init, "check": _check, "up": _up}[which](*arguments)


def _up(file: str, minutes: float, yes: bool) -> int:
    path = Path(file)
    wanted = files.nodes(path)
    _print_findings(path, files.check(path))
    try:
        files.up(path, minutes, yes, lambda line: print(line, flush=True))
    except files.Incomplete as error:
        print(
            f"error: the cluster is not complete: {error}; its nodes stay up: "
            f"`raytrain cluster up {file}` tries again, `ray down {file}` ends the cluster",
            file=sys.stderr,
        )
        return 1
    print(
        f"all {sum(wanted.values())} nodes have joined; `ray dashboard {file}` brings the dashboard to localhost:8265"
    )
    return 0


def _check(file: str, as_json: bool) -> None:
    path = Path(file)
    found = files.check(path)
    if as_json:
        print(json.dumps({"file": file, "findings": [dataclasses.asdict(finding) for finding in found]}))
    _print_findings(path, found, quietly=as_json)
    if not found and not as_json:
        print(f"{file}: nothing is wrong")


def _print_findings(path: Path, found: list[files.Finding], quietly: bool = False) -> None:
    """Print what is wrong with a cluster's file, one line each.

    Raises:
        UserError: the file has errors.
    """
    for finding in found if not quietly else ():
        print(f"{path}:{finding}", flush=True)
    if wrong := sum(finding.level == "error" for finding in found):
        raise errors.UserError(
            f"{wrong} {'errors' if wrong > 1 else 'error'} in the cluster's file",
            path,
            f"correct {'them' if wrong > 1 else 'it'}, then check it again",
        )


def _init(kind: str, out: str | None) -> None:
    if out is None:
        print(files.text(kind), end="")
        return
    lines = files.write(kind, Path(out))
    marked = f"; edit the lines marked EDIT: {', '.join(str(line) for line in lines)}" if lines else ""
    print(f"wrote {out}{marked}")
