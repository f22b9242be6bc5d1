"""The state of storage at a URL: whether it answers."""

from __future__ import annotations

import threading
import time

from raytrain import errors

POLL_SECONDS = 2.0
"""Seconds between checks: of the driver for rows, and of rank 0 for a request to stop and for rows to upload."""


ANSWER_SECONDS = 12.0
"""Seconds for which a request may make no progress, and seconds after which the user is told."""


HURRY_SECONDS = 3.0
"""The limit once a run was asked to stop; and seconds for which training waits for silent storage."""


AGAIN_SECONDS = 15.0
"""While storage is silent, the pending request shows when it answers again; a further request is made after so many
seconds."""


class Pulse:
    """The state of storage at a URL, shared by all threads of this process.

    Attributes:
        limit: seconds without a sign of life after which a request is given up.
    """

    def __init__(self) -> None:
        self.limit = ANSWER_SECONDS
        self._changed, self._changing = threading.Condition(), set[str]()
        self._under_way, self._began, self._reason = 0, 0.0, ""
        self._since: float | None = None

    @property
    def silence(self) -> float:
        """Seconds since a request began after which nothing has succeeded; 0 where nothing is wrong."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def error(self) -> TimeoutError:
        """Return an error that says for how long no request has succeeded."""
        seconds, reason = f"{self.silence:.0f} s", self._reason
        return TimeoutError(
            f"no request has succeeded for {seconds} ({reason})" if reason else f"no answer for {seconds}"
        )

    def begin(self, changes: str | None) -> None:
        """Note that a request begins, once an earlier one that changes the same object, or a folder with it, has ended:
        given up or not, it may still be carried out, and must not be so after this one.

        Args:
            changes: the object or the folder that it writes or removes.

        Raises:
            TimeoutError: the earlier one has not ended, or storage is silent and another request is waiting for it.
        """
        with self._changed:
            if self.silence > self.limit and self._under_way and time.monotonic() < self._began + AGAIN_SECONDS:
                raise self.error()
            if not self._changed.wait_for(lambda: not self._is_changing(changes), self.limit):
                raise TimeoutError(f"{changes} is still being written")
            self._under_way, self._began = self._under_way + 1, time.monotonic()
            if changes is not None:
                self._changing.add(changes)
            self.wait()

    def _is_changing(self, name: str | None) -> bool:
        """Return whether a request changes an object, a folder that it is in, or what is in it."""
        if name is None:
            return False
        return any(f"{name}/".startswith(f"{one}/") or one.startswith(f"{name}/") for one in self._changing)

    def wait(self) -> None:
        """Note that an answer is waited for."""
        if self._since is None:
            self._since = time.monotonic()

    def live(self) -> None:
        """Note progress of a request."""
        self._since, self._reason = None, ""

    def end(self, changes: str | None, error: BaseException | None) -> None:
        """Note how a request ended, also one that was given up."""
        with self._changed:
            self._under_way -= 1
            self._changing.discard(changes or "")
            if error is None or isinstance(error, FileNotFoundError):
                self.live()
            else:
                self._reason = errors.one_line(str(error))[:200]
            self._changed.notify_all()


_PULSES: dict[str, Pulse] = {}


def pulse(url: str) -> Pulse:
    """Return the pulse of storage at a URL."""
    return _PULSES.setdefault(url, Pulse())
