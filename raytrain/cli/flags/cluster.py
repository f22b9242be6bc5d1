"""The flags of the commands of `raytrain cluster`."""

from __future__ import annotations

from typing import Annotated, Any

import tyro

from raytrain import errors
from raytrain.cli.flags.arguments import first_argument, wrapped
from raytrain.cli.flags.parsing import parse


def cluster(arguments: list[str]) -> tuple[str, tuple[Any, ...]] | None:
    """Return the command that follows `cluster`, and its arguments."""
    which = first_argument(arguments)
    commands = {"init": _init, "check": _check, "up": _up}
    if which in commands:
        return which, commands[which](arguments[1:])
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
    return None


def _up(arguments: list[str]) -> tuple[str, float, bool]:
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
    return file, minutes, yes


def _check(arguments: list[str]) -> tuple[str, bool]:
    def command(
        file: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="FILE")]], json: bool = False
    ) -> tuple[str, bool]:
        """Check the file of a cluster offline; nothing is started. The exit status is 2 if there are errors.

        An error cannot work, or exposes the cluster. A warning works, but costs something or may change.
        Of a script, only the lines marked EDIT are checked.

        Args:
            file: A YAML file for `ray up` or KubeRay, or a script of `raytrain cluster init`.
            json: Print one JSON object.
        """
        return file, json

    return parse(command, arguments, "raytrain cluster check")


def _init(arguments: list[str]) -> tuple[str, str | None]:
    def command(
        kind: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="KIND")]], out: str | None = None
    ) -> tuple[str, str | None]:
        """Write a file to start a cluster with. Edit the lines marked EDIT, then check the file.

        Args:
            kind: aws, gcp, azure, on-premises, kuberay, kuberay-job, slurm or plain.
            out: The file to write, which must not exist; by default the text is printed.
        """
        return kind, out

    return parse(command, arguments, "raytrain cluster init")
