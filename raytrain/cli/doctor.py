"""The command doctor."""

from __future__ import annotations

from raytrain import doctor as checks
from raytrain.report import doctor as report


def doctor(address: str | None, out: str, as_json: bool) -> int:
    """Check this machine and the nodes of a cluster. The exit status is 1 if a check fails."""
    survey = checks.examine(address, out)
    found = checks.findings(survey)
    if as_json:
        print(report.to_json(survey, found))
    else:
        report.show(survey, found)
    return int(any(finding.level == "failure" for finding in found))
