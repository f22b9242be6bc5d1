"""Ending a trainer from another thread."""

from __future__ import annotations

import asyncio
from typing import Any


class Cancellable:
    """What another thread can cancel."""

    _cancelled = False

    async def _cancellable(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        while not task.done():
            await asyncio.wait([task], timeout=0.1)
            if self._cancelled:
                task.cancel()
        await task

    def cancel(self) -> None:
        """Cancel it, from any thread."""
        self._cancelled = True
