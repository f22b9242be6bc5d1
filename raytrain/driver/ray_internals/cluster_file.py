"""Ray's schema of a file for `ray up`, and what Ray refuses in one."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import json
import logging
from pathlib import Path
from typing import Any

from raytrain.driver.ray_internals.versions import known, private


def cluster_schema() -> dict[str, Any]:
    """Return Ray's JSON schema of a file for `ray up`; empty with other versions of Ray. Ray itself is not imported."""
    ray = importlib.util.find_spec("ray")
    if known() and ray is not None and ray.origin is not None:
        with contextlib.suppress(OSError, ValueError):
            return json.loads((Path(ray.origin).parent / "autoscaler" / "ray-schema.json").read_text())
    return {}


def refused_cluster(values: dict[str, Any]) -> tuple[tuple[object, ...], str] | None:
    """Return the place and the reason for which `ray up` would refuse a cluster file's values, with Ray's defaults
    filled in; None if it would accept them, and with other versions of Ray. Nothing is started, and no cloud is
    called."""
    util = private("ray.autoscaler._private.util", "prepare_config", "validate_config")
    schema = private("jsonschema", "ValidationError")  # which Ray brings
    if util is None or schema is None:
        return None
    loggers = logging.getLogger("ray")
    level = loggers.level
    loggers.setLevel(logging.CRITICAL)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            util.validate_config(util.prepare_config(copy.deepcopy(values)))
    except schema.ValidationError as error:
        return tuple(error.path), error.message
    except Exception as error:  # Ray indexes and asserts as it goes: any kind is a refusal
        return (), str(error) or " ".join(said.getvalue().split()) or type(error).__name__
    finally:
        loggers.setLevel(level)
    return None
