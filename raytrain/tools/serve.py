"""Serve a run's model over HTTP until the command is asked to end."""

from __future__ import annotations

import importlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from raytrain import errors
from raytrain.driver.interrupts import waiting
from raytrain.driver.resources import Resources
from raytrain.driver.session import Session
from raytrain.run.run import Run
from raytrain.tools.answers import Answers
from raytrain.tools.serving import Serving

_LOOK_SECONDS = 2.0
"""Between two looks whether the cluster still answers."""


def serve(run: Run, how: Serving, address: str | None, verbose: bool, say: Callable[[str], None]) -> None:
    """Serve the best checkpoint's model, on a cluster of this machine alone or on a running one. Return if the cluster
    no longer answers; a signal ends the command.

    Args:
        say: shows a line.

    Raises:
        UserError: the run's model answers no images, the port is taken, the replicas find no room, the cluster does not
            answer, or it serves something already.
    """
    answers = Answers(run)
    answers.predict([np.zeros(answers.shape, np.uint8)])  # a task's own code fails here, and not in a replica
    where = run.url or os.path.abspath(run.path)
    if not (address or os.environ.get("RAY_ADDRESS")):
        _check_port(how)
    with Session(address, verbose) as session:
        how = _placed(how, session.resources(), session.own)
        say("starting Ray Serve ...")
        with waiting():  # Ray hangs if its start is broken off
            session.start(None if run.url else run.path / "experiment.json")
        deployment = importlib.import_module("raytrain.tools.deployment")
        if not session.own:
            deployment.check_free(str(session.address))
        with deployment.running(where, how, session.own, verbose):
            for line in _lines(answers, how, session.own):
                say(line)
            while session.answers():
                time.sleep(_LOOK_SECONDS)


def _lines(answers: Answers, how: Serving, own: bool) -> list[str]:
    """Return what the user needs to know once the server answers."""
    each = f"{how.gpus:g} GPUs each" if how.gpus else f"{how.cpus:g} {'CPU' if how.cpus == 1 else 'CPUs'} each"
    lines = [f"{answers.run.where} ({answers.checkpoint}) is served by {_many(how)} of {each}"]
    lines += [] if own else ["the server listens on the cluster's head"]
    lines += ["other machines can reach it, without a password"] if how.open else []
    return [*lines, f"{how.url}  (Ctrl-C ends it)"]


def _many(how: Serving) -> str:
    return f"{how.replicas} {'replica' if how.replicas == 1 else 'replicas'}"


def _placed(how: Serving, there: Resources, own: bool) -> Serving:
    """Return the CPUs of each replica.

    Raises:
        UserError: they find no room.
    """
    cpus = how.cpus or (max(1.0, there.cpus // how.replicas) if own else 1.0)
    if there.room(cpus, how.gpus) < how.replicas:
        what = f"{_many(how)} of {cpus:g} CPUs and {how.gpus:g} GPUs {'does' if how.replicas == 1 else 'do'} not fit"
        where = f"on {there.where} ({there.cpus:g} CPUs, {there.gpus:g} GPUs)"
        raise errors.UserError(what, where, "give fewer --replicas, or less for each by --cpus and --gpus")
    return replace(how, cpus=cpus)


def _check_port(how: Serving) -> None:
    """Check that this machine's port is free.

    Raises:
        UserError: it is not, or there is no such address.
    """
    family = socket.AF_INET6 if ":" in how.host else socket.AF_INET
    try:
        socket.create_server((how.host, how.port), family=family).close()
    except OSError as error:
        what = f"port {how.port} cannot be used: {error.strerror or error}"
        raise errors.UserError(what, f"on {how.host}", "give another --port, or another --host") from None
