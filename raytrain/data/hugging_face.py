"""What Hugging Face writes into its tables."""

from __future__ import annotations

import json

import pyarrow as pa


def class_names(found: pa.Schema, column: str) -> tuple[str, ...] | None:
    """Return the names of a column's classes by a table's metadata; None without it."""
    try:
        features = json.loads((found.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(str(name) for name in features[column]["names"])
    except (KeyError, TypeError, ValueError):
        return None
