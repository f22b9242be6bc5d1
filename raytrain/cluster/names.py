"""The regions and machines of clouds: of AWS by botocore's data, of Google and Azure by the form of their names.

botocore is not imported: it keeps its data in JSON files.
"""

from __future__ import annotations

import difflib
import gzip
import importlib.util
import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from raytrain.cluster.description import Cluster
from raytrain.cluster.document import Finding, Place

_SIDE = "(?:north|south|east|west|central)"
_FORMS = {
    ("aws", "region"): rf"[a-z]{{2,4}}(-[a-z]{{2,4}})?-{_SIDE}(east|west)?-\d",
    ("aws", "InstanceType"): r"[a-z][\w-]*\.(nano|micro|small|medium|\d*x?large|metal(-\d+xl)?)",
    ("gcp", "region"): rf"[a-z]+-{_SIDE}(east|west)?\d+",
    ("gcp", "availability_zone"): rf"[a-z]+-{_SIDE}(east|west)?\d+-[a-z]",
    ("gcp", "machineType"): r"([a-z]+\d[a-z]*-)?custom(-\d+)+(-ext)?|[a-z]+\d[a-z]*-(micro|small|medium)"
    r"|[a-z]+\d[a-z]*-(standard|(high|mega|ultra|hyper|edge|max)(cpu|mem|gpu|tpu))-\d+[gt]?(-\w+)*",
    ("azure", "location"): rf"(?i)(?=.*({_SIDE}|gov))[a-z]+[a-z0-9 ]*",
    ("azure", "vmSize"): r"(Standard|Basic)_[A-Z]+\d+[\w-]*",
}
"""The form of a name, by provider and field."""


_AWS_GPUS = {
    r"(g4dn|g5|g6|g6e|gr6)\.([248]?xlarge|16xlarge)|p3\.2xlarge|p5\.4xlarge": 1,
    r"(g4dn|g5|g6|g6e)\.(12|24)xlarge|p3\.8xlarge": 4,
    r"(g5|g6|g6e)\.48xlarge|g4dn\.metal|p3\.16xlarge|p3dn\.24xlarge|p4de?\.24xlarge|p5(en?)?\.48xlarge": 8,
}
"""GPUs of AWS's machines, whose names do not show them; others are not compared."""


def check(cluster: Cluster) -> Iterator[Finding]:
    """Find names of regions and machines that the provider does not have."""
    provider = cluster.top["provider"]
    places = [provider["region"], provider["location"], *map(cluster.size, cluster.types.values())]
    if cluster.provider == "gcp":
        places.append(provider["availability_zone"])
    for place in places:
        form = _FORMS.get((cluster.provider, place.name))
        if form is None or place.empty:
            continue
        known = _aws().get(place.name, ()) if cluster.provider == "aws" else ()
        family = place.text.partition(".")[0] + "."
        if not re.fullmatch(form, place.text):
            yield place.error(f"{cluster.provider} has no {place.name} {place.text}", _nearest(place.text, known))
        elif known and place.text not in known:  # the whole family may be newer than the installed botocore
            older = place.name == "region" or any(name.startswith(family) for name in known)
            level, how = place.error if older else place.warning, f"{_nearest(place.text, known)}, or update botocore"
            yield level(f"the installed botocore knows no {place.name} {place.text}", how)


def _nearest(text: str, known: Iterable[str]) -> str:
    """Return a remedy for a name that is not known."""
    close = difflib.get_close_matches(text, known, n=1)
    return f"write {close[0]}" if close else "look it up in the provider's console"


def gpus(cluster: Cluster, kind: Place) -> int | None:
    """Return how many GPUs the machine of a node type has, or None where its name does not tell."""
    size, accelerators = cluster.size(kind).text, cluster.machine(kind)["guestAccelerators"]
    if not size or not cluster.cloud:
        return None
    if not accelerators.empty:
        return sum(place["acceleratorCount"].number or 0 for place in accelerators.items)
    if found := re.search(r"gpu-(\d+)g\b", size):
        return int(found[1])
    if cluster.provider == "aws":
        for pattern, count in _AWS_GPUS.items():
            if re.fullmatch(pattern, size):
                return count
    return None if cluster.has_gpu_machine(kind) else 0


@lru_cache(maxsize=1)
def _aws() -> dict[str, frozenset[str]]:
    """AWS's regions and instance types by the installed botocore; empty without one."""
    package = importlib.util.find_spec("botocore")
    if package is None or not package.submodule_search_locations:
        return {}
    folder = Path(package.submodule_search_locations[0], "data")
    try:
        regions = {name for one in _read(folder, "endpoints")["partitions"] for name in one["regions"]}
        types = _read(max((folder / "ec2").iterdir()), "service-2")["shapes"]["InstanceType"]["enum"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {"region": frozenset(regions), "InstanceType": frozenset(types)}


def _read(folder: Path, name: str) -> Any:
    packed = folder / f"{name}.json.gz"
    return json.loads(
        gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / f"{name}.json").read_bytes()
    )
