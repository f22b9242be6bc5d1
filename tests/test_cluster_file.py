"""The top-level cluster.yaml is one that Ray's launcher accepts. Without a cloud, and without Ray's processes."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def test_the_cluster_file_passes_rays_own_schema() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.autoscaler._private.util import prepare_config, validate_config

    values = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    validate_config(prepare_config(copy.deepcopy(values)))
    assert values["head_node_type"] in values["available_node_types"]
    assert "make setup" in values["setup_commands"][0], "unset setup commands would install a nightly Ray"
