"""The commands of `raytrain cluster`."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from raytrain import errors
from raytrain.cli.parsing import (
    first_argument,
    parse,
    wrapped,
)

if TYPE_CHECKING:
    from raytrain.cluster import Finding


def cluster_command(arguments: list[str]) -> int | None:
    """Start a cluster: raytrain cluster init KIND [--out FILE] | check FILE | up FILE"""
    which = first_argument(arguments)
    commands = {"init": _cluster_init, "check": _cluster_check, "up": _cluster_up}
    if which in commands:
        return commands[which](arguments[1:])
    if which is not None:
        raise errors.unknown_command(f"cluster {which}", [f"cluster {name}" for name in commands])
    if not arguments or arguments[0] not in ("-h", "--help"):
        raise errors.bad_flag("`init`, `check` or `up` must come first", "raytrain cluster")
    print(
        "usage: raytrain cluster init KIND [--out FILE]\n       raytrain cluster check FILE [--json]\n"
        "       raytrain cluster up FILE [--minutes 20] [--yes]\n\n"
        + wrapped(
            "`init` writes a file to start with. `check` looks for mistakes in such a file (for `ray up` or KubeRay), "
            "offline. `up` starts the cluster with `ray up` and waits until all of its nodes have joined."
        )
    )


def _cluster_up(arguments: list[str]) -> int:
    def command(
        file: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="FILE")]],
        minutes: float = 20.0,
        yes: bool = False,
    ) -> tuple[str, float, bool]:
        """Check the file of a cluster, start it with `ray up`, and wait until the head and all min_workers have joined.

        The autoscaler is version 1: with version 2, the default of `ray up`, workers may be left out.
        The exit status is 1 if nodes are missing (the cluster stays up) and 2 if the file has errors.

        Args:
            file: A YAML file for `ray up`.
            minutes: How long the nodes may take to join after the head has started.
            yes: Do not ask before the cluster is started, or restarted if it runs, which ends its jobs.
        """
        return file, minutes, yes

    file, minutes, yes = parse(command, arguments, "raytrain cluster up")
    if not 0 < minutes < 10_000:  # also NaN
        raise errors.bad_flag(f"--minutes must be above 0, got {minutes:g}", "raytrain cluster up")
    from raytrain import cluster

    path = Path(file)
    wanted = cluster.nodes(path)
    _print_findings(path, cluster.check(path))
    try:
        cluster.up(path, minutes, yes, lambda line: print(line, flush=True))
    except cluster.Incomplete as error:
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


def _cluster_check(arguments: list[str]) -> None:
    def command(
        file: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="FILE")]], json: bool = False
    ) -> tuple[str, bool]:
        """Check the file of a cluster offline; nothing is started. The exit status is 2 if there are errors.

        An error is what cannot work or exposes the cluster; a warning is what works and costs something or may change.

        Args:
            file: A YAML file for `ray up`, a RayCluster or RayJob of KubeRay, or a script of `raytrain cluster init`
                (only its lines to edit are checked).
            json: Print one JSON object.
        """
        return file, json

    file, as_json = parse(command, arguments, "raytrain cluster check")
    from raytrain import cluster

    path = Path(file)
    found = cluster.check(path)
    if as_json:
        print(json.dumps({"file": file, "findings": [dataclasses.asdict(finding) for finding in found]}))
    _print_findings(path, found, quietly=as_json)
    if not found and not as_json:
        print(f"{file}: nothing is wrong")


def _print_findings(path: Path, found: list[Finding], quietly: bool = False) -> None:
    """Print what is wrong with a cluster's file, a line each.

    Raises:
        UserError: there are errors among it.
    """
    for finding in found if not quietly else ():
        print(f"{path}:{finding}", flush=True)
    if wrong := sum(finding.level == "error" for finding in found):
        raise errors.UserError(
            f"{wrong} {'errors' if wrong > 1 else 'error'} in the cluster's file",
            path,
            f"correct {'them' if wrong > 1 else 'it'}, then check it again",
        )


def _cluster_init(arguments: list[str]) -> None:
    def command(
        kind: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="KIND")]], out: str | None = None
    ) -> tuple[str, str | None]:
        """Gives a file to begin a cluster with. Edit the lines marked EDIT, then check it.

        Args:
            kind: aws, gcp, azure, on-premises, kuberay, kuberay-job, slurm or plain.
            out: The file to write, which must not be there; by default it is printed.
        """
        return kind, out

    kind, out = parse(command, arguments, "raytrain cluster init")
    from raytrain import cluster

    if out is None:
        print(cluster.text(kind), end="")
        return
    lines = cluster.write(kind, Path(out))
    marked = f"; edit the lines marked EDIT: {', '.join(str(line) for line in lines)}" if lines else ""
    print(f"wrote {out}{marked}")
