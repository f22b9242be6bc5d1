"""Which folds can share one copy of their data. The plan asks before Ray is imported, which `fold_data` imports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from raytrain.data import Folds
from raytrain.driver.plan import Plan
from raytrain.experiment import Experiment
from raytrain.sweep import record


def groups(variants: Mapping[str, Plan]) -> list[list[str]]:
    """Return the keys of variants that can share what they read: folds of the same samples in memory."""
    found: dict[str, list[str]] = {}
    for key, variant in variants.items():
        data, train = variant.experiment.data, variant.indices["train"]
        # A source may find a sample by its place in the index where neither a row nor a path names it.
        if data.folds.count and variant.mode == "resident" and (train.rows is not None or train.in_files):
            found.setdefault(record.reads(whole(variant)), []).append(key)
    return [keys for keys in found.values() if len(keys) > 1]


def whole(variant: Plan) -> Experiment:
    """Return a fold's experiment with the source's own splits."""
    value = variant.experiment
    return replace(value, data=replace(value.data, folds=Folds()))
