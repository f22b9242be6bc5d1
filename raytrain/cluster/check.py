"""Checks a cluster's file: offline, without a cloud's SDK, and without starting anything."""

from __future__ import annotations

from pathlib import Path

from raytrain.cluster import document, kubernetes, launcher
from raytrain.cluster.document import Finding


def check(path: Path) -> list[Finding]:
    """What is wrong with a file for `ray up`, or with a RayCluster or RayJob of KubeRay, by line; errors and warnings.

    Raises:
        UserError: it cannot be read as YAML.
    """
    documents, found = document.read(path)
    if any(place["apiVersion"].there or place["kind"].there for place in documents):
        for place in documents:
            found += kubernetes.check(place)
    elif len(documents) != 1 or not documents[0].fields:
        place = documents[1] if len(documents) > 1 else document.Place(None, 1)
        found.append(place.error("a file for `ray up` is one mapping", "start from `raytrain cluster init KIND`"))
    else:
        found += launcher.check(documents[0])
    return sorted(dict.fromkeys(found), key=lambda finding: (finding.line, finding.level, finding.what))
