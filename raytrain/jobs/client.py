"""Ray's own client for jobs. `Dashboard.client` alone imports this module, because it imports Ray."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator

from aiohttp import ClientError
from ray.job_submission import JobSubmissionClient

from raytrain.jobs.dashboard import ADDRESSES


class Client(JobSubmissionClient):
    """Ray's client without its log messages. It takes no address and no token from the environment.

    Args:
        url: the dashboard's.
        headers: what lets us in.
    """

    def __init__(self, url: str, headers: dict[str, str]):
        for name in list(logging.root.manager.loggerDict):
            if name.partition(".")[0] == "ray":
                logging.getLogger(name).setLevel(logging.CRITICAL)
        before = {name: os.environ.pop(name) for name in ADDRESSES if name in os.environ}
        try:
            # With this header, even an empty one, Ray's client does not send the token of the environment.
            super().__init__(url, headers={"Authorization": "", **headers})
        finally:
            os.environ.update(before)

    async def tail_job_logs(self, job_id: str) -> AsyncIterator[str]:
        """Yield what a job prints, from its start.

        Raises:
            OSError: the connection is cut.
        """
        try:
            async for text in super().tail_job_logs(job_id):
                yield text
        except ClientError as error:
            raise OSError(str(error)) from error
