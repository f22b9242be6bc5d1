"""Gather facts from this machine, and from a cluster's nodes."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from raytrain import errors
from raytrain.doctor.checks import Survey
from raytrain.doctor.facts import Facts, gather, remove
from raytrain.driver import limits
from raytrain.driver.session import Session
from raytrain.files import existing, is_url


def examine(address: str | None = None, out: str = "runs") -> Survey:
    """Gather facts from this machine, and from the nodes of a cluster if there is an address (or RAY_ADDRESS).

    Args:
        address: host:port, or `auto`.
        out: the folder or URL for runs; of a folder that is not there, the nearest above it is looked at.

    Raises:
        UserError: no cluster answers at the address.
    """
    folder = out if is_url(out) else str(existing(Path(out)))
    mark = f".raytrain-doctor-{uuid.uuid4().hex[:12]}"
    own = f"{mark}-here"
    try:
        here = Facts.of(gather(folder, own, own))
        address = address or os.environ.get("RAY_ADDRESS")
        if not address:
            return Survey(here, out=out, refused=_refused())
        with Session(address, verbose=False) as session:
            session.start()
            from raytrain.doctor.nodes import survey  # Ray, which a machine without a cluster does not need

            return survey(here, address, out, folder, mark)
    finally:
        remove(folder, [own])


def _refused() -> tuple[str, str] | None:
    """Return why Ray would not start here, and the remedy."""
    try:
        limits.check()
    except errors.UserError as error:
        return f"{error.what} {error.where}", error.how
    return None
