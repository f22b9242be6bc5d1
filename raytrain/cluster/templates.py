"""The files for clusters that come with raytrain."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from raytrain import errors

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
    """The file of a kind.

    Raises:
        UserError: there is no such kind.
    """
    if kind not in _FILES:
        raise errors.unknown_cluster(kind, KINDS)
    return (resources.files("raytrain.cluster") / "files" / _FILES[kind]).read_text()


def write(kind: str, path: Path) -> list[int]:
    """Writes the file of a kind, and returns the lines in it that its user must edit. What is there stays.

    Raises:
        UserError: there is no such kind, the file exists, or it cannot be written.
    """
    content = text(kind)
    try:
        with path.open("x") as file:
            file.write(content)
    except FileExistsError:
        raise errors.file_exists(path) from None
    except (OSError, ValueError) as error:
        raise errors.cannot_write(path, getattr(error, "strerror", None) or str(error)) from None
    return [number for number, line in enumerate(content.splitlines(), 1) if "# EDIT" in line]
