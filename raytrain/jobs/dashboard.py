"""A cluster's dashboard: whether it answers, accepts the token, and knows of jobs.

It uses the documented HTTP interface. Ray's own client waits for an answer without a limit, and would send the token to
any server; so `jobs` uses it only after the dashboard has been checked.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import socket
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeVar

from raytrain import errors
from raytrain.driver import credentials

if TYPE_CHECKING:
    from raytrain.jobs.client import Client

ADDRESSES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
"""Where Ray's own client looks for an address."""
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 12.0
"""Seconds for a whole request, including the look-up of the name and slow answers."""
_MOST_BYTES = 2**28

T = TypeVar("T")


@dataclass(frozen=True)
class Dashboard:
    """A dashboard that has answered.

    Attributes:
        url: its address, without a slash at its end.
        headers: what lets us in.
        in_the_clear: whether a token travels unencrypted, and beyond this machine.
    """

    url: str
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    in_the_clear: bool = False

    def ask(self, path: str, method: str = "GET") -> tuple[int, Any]:
        """Return the status and the JSON of an answer (its text, where it is not JSON).

        Raises:
            NoAnswer: there is none within seconds.
            UserError: it does not let us in.
        """
        status, body = _in_time(self.url, lambda: _request(self, path, method))
        if status == 401:
            raise errors.token_missing(self.url, "none was sent")
        if status == 403:
            raise errors.token_refused(self.url, credentials.token()[1])
        try:
            return status, json.loads(body)
        except ValueError:
            return status, body.decode(errors="replace")

    def client(self) -> Client:
        """Return Ray's own client for this dashboard."""
        from raytrain.jobs.client import Client  # imports Ray, which takes longer than most commands for jobs

        return Client(self.url, self.headers)


def reach(address: str | None) -> Dashboard:
    """Check that a dashboard of this version of Ray is at an address, and accepts the token.

    Args:
        address: its URL; by default that of RAY_API_SERVER_ADDRESS or RAY_ADDRESS, where these are URLs.

    Raises:
        UserError: there is none, or it does not.
    """
    url = _url(address)
    return _in_time(url, lambda: _greet(url))


def _in_time(url: str, call: Callable[[], T]) -> T:
    """Return the result of a call; give it up if it takes too long, as the look-up of a name can."""
    result: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            result.append(call())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True, name="asking")
    thread.start()
    thread.join(_ANSWER_SECONDS)
    if raised:
        raise raised[0]
    if not result:
        raise _no_dashboard(url, f"nothing within {_ANSWER_SECONDS:.0f} s")
    return result[0]


def _url(address: str | None) -> str:
    if address is None:
        given = [os.environ.get(name, "") for name in ADDRESSES]
        address = next((url for url in given if url.startswith(("http://", "https://"))), None)
    if address is None:
        raise errors.UserError(
            "no cluster is named",
            "",
            "give the URL of its dashboard: --address http://HOST:8265, or RAY_API_SERVER_ADDRESS",
        )
    try:
        parts = urllib.parse.urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _not_a_dashboard_url(address, "http://HOST:8265") from None
    if parts.scheme not in ("http", "https") or not host:
        host = address.rpartition("//")[2].partition(":")[0].strip("/")
        raise _not_a_dashboard_url(address, f"http://{host if host not in ('', 'auto') else 'HOST'}:8265")
    if parts.password is not None or parts.username is not None:
        raise errors.secret_in_url("--address")
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{parts.path.rstrip('/')}"


def _greet(url: str) -> Dashboard:
    found = Dashboard(url)
    status, body = _request(found, "/api/version")
    if status == 401:
        found = _with_token(url)
        status, body = _request(found, "/api/version")
        if status in (401, 403):
            raise errors.token_refused(url, credentials.token()[1])
    try:
        version = json.loads(body)["ray_version"] if status == 200 else None
    except (ValueError, TypeError, KeyError):
        version = None
    if not isinstance(version, str):
        raise _no_dashboard(url, f"something else answers there, with {status} to /api/version")
    here = metadata.version("ray")
    if version.split(".")[:2] != here.split(".")[:2]:
        raise errors.other_ray(url, version[:40], here)
    return found


def _with_token(url: str) -> Dashboard:
    """The token is sent only where it is asked for, and never unencrypted over the internet."""
    token, where = credentials.token()
    if not token:
        raise errors.token_missing(url, where)
    parts = urllib.parse.urlsplit(url)
    in_the_clear = False
    if parts.scheme == "http":
        found = socket.getaddrinfo(parts.hostname, None, type=socket.SOCK_STREAM)
        places = [ipaddress.ip_address(str(place[0]).partition("%")[0]) for *_, place in found]
        if any(place.is_global for place in places):
            raise errors.UserError(
                "the token would cross the internet unencrypted",
                url,
                "tunnel (`ssh -N -L 8265:localhost:8265 HEAD`, or `ray dashboard cluster.yaml`) and "
                "use --address http://localhost:8265",
            )
        in_the_clear = not all(place.is_loopback for place in places)
    return Dashboard(url, {"Authorization": f"Bearer {token}"}, in_the_clear)


class _AsItIs(urllib.request.HTTPErrorProcessor):
    """Neither raises for a status nor follows redirections."""

    def http_response(self, request: Any, response: Any) -> Any:
        return response

    https_response = http_response


def _request(dashboard: Dashboard, path: str, method: str = "GET") -> tuple[int, bytes]:
    body = b"" if method == "POST" else None
    asked = urllib.request.Request(dashboard.url + path, method=method, headers=dashboard.headers, data=body)
    try:
        with urllib.request.build_opener(_AsItIs).open(asked, timeout=_CONNECT_SECONDS) as answer:
            return answer.status, answer.read(_MOST_BYTES)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, TimeoutError):
            why = f"nothing within {_CONNECT_SECONDS:.0f} s"
        elif isinstance(reason, http.client.HTTPException):
            why = "the server there does not speak HTTP"
        else:
            why = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        raise _no_dashboard(dashboard.url, why) from None


def _not_a_dashboard_url(address: str, url: str) -> errors.UserError:
    return errors.UserError(
        "this is not the URL of a dashboard",
        address,
        f"give one such as {url} (8265 is Ray's default port)",
    )


def _no_dashboard(url: str, reason: str) -> errors.NoAnswer:
    return errors.NoAnswer(
        f"no Ray dashboard answers: {reason}",
        url,
        "give the URL that `ray start --head` prints, http://HOST:8265 by default, or that of a tunnel to it",
    )
