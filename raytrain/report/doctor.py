"""What `raytrain doctor` prints: a line a finding, the machines of one kind together, and below it the remedy."""

from __future__ import annotations

import dataclasses
import json

from rich.text import Text

from raytrain import errors
from raytrain.doctor import Finding, Survey
from raytrain.report.console import terminal
from raytrain.report.layout import columns, folded

_STYLES = {"ok": "green", "warning": "bold yellow", "failure": "bold red"}


def show(survey: Survey, found: list[Finding]) -> None:
    """Print all findings; what several machines have in common once."""
    console = terminal()
    machines: dict[Finding, list[str]] = {}
    for finding in found:
        machines.setdefault(dataclasses.replace(finding, machine=""), []).append(finding.machine)
    for finding, names in machines.items():
        level, check = f"{finding.level:>8}", f"  {finding.check:<14}"
        where = f"{_together(names, survey)}: " if survey.address else ""
        first, *others = folded(level + check, where + finding.what, columns(console))
        console.print(Text(level, style=_STYLES[finding.level]).append(first[len(level) :], style="not bold default"))
        if finding.remedy:
            others += folded(" " * len(level + check), finding.remedy, columns(console))
        for line in others:
            console.print(Text(line))
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
    return errors.listed(names, 4)
