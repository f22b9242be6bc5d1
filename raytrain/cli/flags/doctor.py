"""The flags of the command doctor."""

from __future__ import annotations

from raytrain.cli.flags.parsing import parse


def doctor(arguments: list[str]) -> tuple[str | None, str, bool]:
    """Return the cluster's address, the folder for runs, and whether JSON is wanted."""

    def command(address: str | None = None, out: str = "runs", json: bool = False) -> tuple[str | None, str, bool]:
        """Check this machine and every node of a cluster for problems that would stop or slow a training.

        The exit status is 1 if a check fails; warnings do not count.

        Args:
            address: Address of a running Ray cluster, or `auto`; by default RAY_ADDRESS, or else this machine alone.
            out: The folder or URL for runs; checks that it can be written and that all nodes share it.
            json: Print one JSON object.
        """
        return address, out, json

    return parse(command, arguments, "raytrain doctor")
