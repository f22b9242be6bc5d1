"""What `raytrain doctor` prints: a line a finding, the machines of one kind together, and below it the remedy."""

from __future__ import annotations

import dataclasses
import json

from rich.text import Text

from raytrain.doctor import Finding, Survey
from raytrain.report.console import terminal

_STYLES = {"ok": "green", "warning": "bold yellow", "failure": "bold red"}


def show(survey: Survey, found: list[Finding]) -> None:
    """Prints all findings; what several machines have in common once."""
    console = terminal()
    machines: dict[Finding, list[str]] = {}
    for finding in found:
        machines.setdefault(dataclasses.replace(finding, machine=""), []).append(finding.machine)
    for finding, names in machines.items():
        line = Text(f"{finding.level:>8}", style=_STYLES[finding.level])
        line.append(f"  {finding.check:<14}", style="not bold default")
        where = f"{_together(names, survey)}: " if survey.address else ""
        line.append(f"{where}{finding.what}", style="not bold default")
        console.print(line)
        if finding.remedy:
            console.print(Text(f"{'':>26}{finding.remedy}"))
    count = {level: sum(finding.level == level for finding in machines) for level in ("failure", "warning")}
    said = [f"{number} {level}{'s' if number > 1 else ''}" for level, number in count.items() if number]
    console.print(", ".join(said) or "nothing is wrong")


def to_json(survey: Survey, found: list[Finding]) -> str:
    """One JSON object: the findings, and the facts that they rest on."""
    return json.dumps(
        {
            "address": survey.address,
            "out": survey.out,
            "findings": [dataclasses.asdict(finding) for finding in found],
            "machines": [dataclasses.asdict(machine) for machine in (survey.here, *survey.nodes)],
        }
    )


def _together(names: list[str], survey: Survey) -> str:
    """Names of machines; all of them, or all nodes, have one name."""
    if len(names) > 2 and len(names) == 1 + len(survey.nodes) + len(survey.silent):
        return "all"
    nodes = [name for name in names if name != survey.here.name]
    if len(nodes) > 1 and len(nodes) == len(survey.nodes) + len(survey.silent):
        return ", ".join([*names[: len(names) - len(nodes)], "all nodes"])
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
