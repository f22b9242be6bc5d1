"""Check a cluster's file: offline, without a cloud's SDK, and without starting anything.

An error fails, has no effect, or lets strangers in. A warning works, but raytrain advises against it.
"""

from __future__ import annotations

from pathlib import Path

from raytrain.cluster import document, kubernetes, launcher, templates
from raytrain.cluster.document import Finding


def check(path: Path) -> list[Finding]:
    """Return the findings for a file for `ray up`, or for a RayCluster or RayJob of KubeRay, by line.

    In a script only the placeholders are checked.

    Raises:
        UserError: it cannot be read as YAML.
    """
    data = document.load(path)
    unedited = templates.unedited(data.decode(errors="replace"))
    if data.startswith(b"#!"):
        return unedited
    documents, found = document.read(path)
    found += unedited
    if any(place["apiVersion"].there or place["kind"].there for place in documents):
        for place in documents:
            found += kubernetes.check(place)
    elif len(documents) != 1 or not documents[0].fields:
        place = documents[1] if len(documents) > 1 else document.Place(None, 1)
        found.append(place.error("a file for `ray up` is one mapping", "start from `raytrain cluster init KIND`"))
    else:
        found += launcher.check(documents[0])
    return sorted(dict.fromkeys(found), key=lambda finding: (finding.line, finding.level, finding.what))
