"""The command doctor."""

from __future__ import annotations

from raytrain.cli.parsing import (
    parse,
)


def doctor_command(arguments: list[str]) -> int:
    """Look for what is wrong: raytrain doctor [--address ADDR] [--out DIR] [--json]"""

    def command(address: str | None = None, out: str = "runs", json: bool = False) -> tuple[str | None, str, bool]:
        """Looks for what would hold a training up, on this machine and on every node of a cluster.

        Ends with 1 where there are failures; warnings do not count.

        Args:
            address: Address of a running Ray cluster, or `auto`; by default RAY_ADDRESS, or else this machine alone.
            out: The folder or URL for runs: whether it can be written, and is shared by all nodes.
            json: Print one JSON object.
        """
        return address, out, json

    address, out, as_json = parse(command, arguments, "raytrain doctor")
    from raytrain import doctor
    from raytrain.report import doctor as report

    survey = doctor.examine(address, out)
    found = doctor.findings(survey)
    if as_json:
        print(report.to_json(survey, found))
    else:
        report.show(survey, found)
    return int(any(finding.level == "failure" for finding in found))
