"""The files for clusters that come with raytrain."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from raytrain import errors
from raytrain.cluster.document import Finding
from raytrain.files import reason

_MARK = "# EDIT"
_PLACEHOLDER = re.compile(
    r"\b\w+-0123456789abcdef0\b|\b192\.0\.2\.\d+|\b[\w.-]*\bexample\.com\b|\byour-?(?:project|account)\b|\bYOUR_\w+"
)
"""The placeholders in the files, which the user must replace."""
_FILES = {
    "aws": "aws.yaml",
    "gcp": "gcp.yaml",
    "azure": "azure.yaml",
    "on-premises": "on-premises.yaml",
    "kuberay": "kuberay.yaml",
    "kuberay-job": "kuberay-job.yaml",
    "slurm": "slurm.sh",
    "plain": "plain.sh",
}
KINDS = tuple(_FILES)
"""The kinds of clusters, as `raytrain cluster init` takes them."""


def text(kind: str) -> str:
    """Return the file of a kind.

    Raises:
        UserError: there is no such kind.
    """
    if kind not in _FILES:
        raise errors.UserError(
            f"no kind of cluster {kind!r}", "", f"{errors.nearest(kind, KINDS)}the kinds are {errors.listed(KINDS)}"
        )
    return (resources.files("raytrain.cluster") / "files" / _FILES[kind]).read_text()


def write(kind: str, path: Path) -> list[int]:
    """Write the file of a kind, and return the lines that the user must edit. An existing file stays.

    Raises:
        UserError: there is no such kind, the file exists, or it cannot be written.
    """
    content = text(kind)
    try:
        with path.open("x") as file:
            file.write(content)
    except FileExistsError:
        raise errors.UserError(
            "this file exists, and is not written over", path, "give another --out, or remove it"
        ) from None
    except (OSError, ValueError) as error:
        raise errors.cannot_write(path, reason(error)) from None
    return [number for number, line in enumerate(content.splitlines(), 1) if _MARK in line]


def unedited(content: str) -> list[Finding]:
    """Return the placeholders that a file still has, and the lines marked EDIT that are as they were shipped."""
    shipped = {line.strip() for kind in KINDS for line in text(kind).splitlines() if _MARK in line}
    found = []
    for number, line in enumerate(content.splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        code = line.partition(" #")[0].strip()
        if names := dict.fromkeys(_PLACEHOLDER.findall(code)):
            what = f"a placeholder is left: {', '.join(names)}"
            found.append(Finding(number, "error", what, "write a value of your own"))
        elif line.strip() in shipped:
            what, how = f"{code[:60]!r} is as it was shipped", "write your own value, or remove `# EDIT` to keep it"
            found.append(Finding(number, "warning", what, how))
    return found
