"""The versions that a cluster must have: those installed here.

Nodes exchange pickled functions, tensors and Ray's messages, none of which is compatible across versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib import metadata

from raytrain.cluster.document import Finding, Place

OLDEST_PYTHON = (3, 11)
_FIRST_WITH_TOKEN = (2, 52)
"""KubeRay refuses authOptions for a Ray before this one."""
_TAG = re.compile(r"(?P<ray>\d+\.\d+\.\d+)(-py(?P<python>3\d+))?(-(?P<platform>cpu|gpu|cu(?P<cuda>\d{3})))?(-.*)?")
_FLOATING = re.compile(r"(latest|nightly|master|main|dev|stable|edge)([-.].*)?", re.IGNORECASE)
_PIN = re.compile(r"\b(ray|torch)(?:\[[\w,.-]+\])?\s*(==|>=|~=|<=|>|<)\s*([\w.]+)")
_INSTALL = re.compile(r"\b(?:pip3?|uv)\b[^;&|\n]*\binstall\b([^;&|\n]*)")
_WHEEL = re.compile(r"ray-wheels/|\bray-\d[\w.]*dev|/ray/releases/latest")


@lru_cache(maxsize=1)
def installed() -> dict[str, str]:
    """Return the versions of ray and torch here, and of torch's CUDA where it comes with one."""
    found = {}
    for name in ("ray", "torch", "nvidia-cuda-runtime"):
        try:
            found[name] = metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return found


def check_image(image: Place, gpu: bool = False, used: bool = True) -> Iterator[Finding]:
    """Check a container image.

    Args:
        image: the place of its name.
        gpu: whether it runs on nodes with GPUs.
        used: whether the image's own Ray runs, and not one that is installed beside it.
    """
    if not isinstance(image.value, str) or not image.text:
        return
    repository, tag, digest = _parts(image.text)
    official = repository.rpartition("/")[2] == "ray" and repository.startswith(("rayproject", "docker.io/rayproject"))
    ours = installed()
    wanted = f"rayproject/ray:{ours.get('ray', '')}-py312-cu{_cuda_tag()}"
    if not digest and not tag:
        yield image.warning(f"the image {image.text} has no tag, which is `latest`", f"pin it: {wanted}")
        return
    if not digest and _FLOATING.fullmatch(tag):
        yield image.warning(f"the tag {tag!r} may be another image tomorrow", f"pin it: {wanted}")
        return
    found = _TAG.fullmatch(tag)
    if found is None or not (official or found["python"]):
        return
    if found["ray"] != ours.get("ray"):
        level = image.error if used else image.warning
        yield level(f"the image has Ray {found['ray']}, and {ours.get('ray')} is locked", f"use {wanted}")
    if official and found["python"] is None:
        yield image.error(
            "an image of Ray's without a Python tag has Python 3.10, too old for raytrain", f"use {wanted}"
        )
    elif found["python"] and int(found["python"][1:]) < OLDEST_PYTHON[1]:
        yield image.error(f"the image has Python 3.{found['python'][1:]}, and raytrain needs 3.11", f"use {wanted}")
    cuda = ours.get("nvidia-cuda-runtime")
    if found["cuda"] and cuda and found["cuda"][:2] != cuda.partition(".")[0]:
        yield image.warning(
            f"the image has CUDA {found['cuda'][:2]}.{found['cuda'][2:]}, and torch's is {cuda}", f"use {wanted}"
        )
    elif gpu and official and found["python"] and found["cuda"] is None and found["platform"] != "gpu":
        yield image.error("the image has no CUDA, and its nodes have GPUs", f"use {wanted}")


def check_commands(commands: Iterable[Place]) -> Iterator[Finding]:
    """Check the packages that shell commands install."""
    ours = installed()
    for command in commands:
        if _WHEEL.search(command.text):
            yield command.error("this installs a development wheel of Ray", "install the lock file: `make setup`")
            continue
        for name, operator, version in _PIN.findall(command.text):
            if operator != "==":
                yield command.warning(
                    f"{name} {operator} {version} may be another version tomorrow", _exactly(name, ours)
                )
            elif version != ours.get(name):
                level = command.error if name == "ray" else command.warning
                yield level(f"this installs {name} {version}, and {ours.get(name)} is locked", _exactly(name, ours))
        for packages in _INSTALL.findall(command.text):
            for word in packages.replace('"', " ").replace("'", " ").split():
                name = word.partition("[")[0]
                if name in ("ray", "torch") and not word.partition("]")[2]:
                    yield command.warning(f"this installs whichever {name} is newest that day", _exactly(name, ours))


def check_version(version: Place) -> Iterator[Finding]:
    """Check KubeRay's `rayVersion`."""
    ours = installed().get("ray")
    if version.text != ours:
        what = f"rayVersion is {version.text}" if version.there else "there is no rayVersion"
        parts = tuple(int(part) for part in version.text.split(".") if part.isdigit())
        level = version.error if parts < _FIRST_WITH_TOKEN else version.warning
        yield level(f"{what}, and Ray {ours} is locked", f"write rayVersion: {ours}")


def _parts(image: str) -> tuple[str, str, str]:
    """Return the repository, tag and digest of an image; a colon before a slash is a registry's port."""
    name, _, digest = image.partition("@")
    path, colon, tag = name.rpartition(":")
    return (path, tag, digest) if colon and "/" not in tag else (name, "", digest)


def _cuda_tag() -> str:
    """Ray's images of one major version of CUDA end in its first minor one: cu130."""
    return installed().get("nvidia-cuda-runtime", "13").partition(".")[0] + "0"


def _exactly(name: str, ours: dict[str, str]) -> str:
    return f"install the lock file (`make setup`), or {name}=={ours.get(name)}"
