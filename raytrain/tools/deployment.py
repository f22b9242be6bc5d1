"""The application of Ray Serve that answers with a run's model: its replicas, their start and their end.

Ray Serve and Starlette are installed by `raytrain[serve]`; `serve` imports this module once Ray runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from raytrain import errors
from raytrain.driver.interrupts import waiting
from raytrain.run.run import Run
from raytrain.tools.answers import Answers
from raytrain.tools.handler import Handler
from raytrain.tools.serving import Serving

_NAME = "raytrain"
_BATCH_SECONDS = 0.005
"""How long a batch waits for further images."""
_REQUEST_SECONDS = 60
_HEALTH_SECONDS = 2
_LOGGING = {"log_level": "ERROR", "enable_access_log": False}


class Replica:
    """A process that answers requests with one copy of the model.

    Args:
        where: the run, as commands take it.
        how: the batch and the resources.
    """

    def __init__(self, where: str, how: Serving):
        threads = max(1, int(how.cpus or 1))
        torch.set_num_threads(threads)
        device = "cuda" if how.gpus else "cpu"
        answers, model = Answers(Run(where), device=device), ThreadPoolExecutor(1, "model")

        # The model computes in a thread, so that the replica answers its health check and takes requests meanwhile.
        @serve.batch(max_batch_size=how.max_batch, batch_wait_timeout_s=_BATCH_SECONDS)
        async def predict(images: list[np.ndarray]) -> list[dict[str, Any]]:
            return await asyncio.get_running_loop().run_in_executor(model, answers.predict, images)

        self._handler = Handler(answers, predict, threads)  # type: ignore[arg-type]

    async def __call__(self, request: Request) -> Response:
        """Answer a request."""
        path = request.url.path
        found = await self._handler.answer(request.method, path, request.headers, request.stream())
        return Response(found.content, found.status, found.headers, found.kind)


def check_free(address: str) -> None:
    """Check that a cluster does not run Ray Serve yet, whose port and applications would be another's.

    Raises:
        UserError: it does.
    """
    status = serve.status()
    if status.proxies or status.applications:
        what = f"the cluster runs Ray Serve already ({errors.listed(status.applications) or 'without applications'})"
        raise errors.UserError(what, address, "end that first (`serve shutdown`), or serve on another cluster")


@contextlib.contextmanager
def running(where: str, how: Serving, own: bool, verbose: bool) -> Iterator[None]:
    """Start the replicas and the HTTP server on the cluster's head; return once they answer, and end them afterwards.

    Args:
        where: the run, as commands take it, from any node.
        own: whether the cluster ends anyway.
        verbose: show Serve's messages.
    """
    if not verbose:
        logging.getLogger("ray.serve").setLevel(logging.CRITICAL)
    deployed = serve.deployment(
        name=_NAME,
        num_replicas=how.replicas,
        ray_actor_options={"num_cpus": how.cpus, "num_gpus": how.gpus},
        max_ongoing_requests=max(64, 2 * how.max_batch),
        health_check_period_s=_HEALTH_SECONDS,
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=5,
        max_constructor_retry_count=2,
        logging_config=_LOGGING,
    )
    try:
        serve.start(
            proxy_location="HeadOnly",
            http_options={"host": how.host, "port": how.port, "request_timeout_s": _REQUEST_SECONDS},
            logging_config=_LOGGING,
        )
        serve.run(deployed(Replica).bind(where, how), name=_NAME, route_prefix="/", logging_config=_LOGGING)
        yield
    finally:
        if not own:
            with waiting():
                serve.shutdown()
