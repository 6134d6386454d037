"""HTTP with the standard library: one sentence for whatever goes wrong between here and a server."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from xshare.errors import XShareError


class ServerError(XShareError):
    """A server that does not answer, stops answering, or refuses what it is asked."""


def refusal(results: Any) -> str | None:
    """The sentence with which a worker has refused a call, of a list of what each has answered."""
    answers = results if isinstance(results, list) else []
    return next((str(each["error"]) for each in answers if isinstance(each, dict) and [*each] == ["error"]), None)


class Http:
    """A server by its address. Every call has a connection of its own, so that threads may call."""

    def __init__(self, url: str, timeout: float) -> None:
        parts = urlsplit(url)
        try:
            well_formed = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is no number
            well_formed = False
        if not well_formed:
            raise ServerError(f"server {url!r} is no address: expected one as http://127.0.0.1:8000")
        self.url, self.timeout = url.rstrip("/").removesuffix("/v1"), timeout
        self._secure, self._host = parts.scheme == "https", parts.netloc
        self._prefix = urlsplit(self.url).path
        key = os.environ.get("OPENAI_API_KEY")  # as the clients of such servers have it
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._sockets: set[socket.socket] = set()  # of calls under way

    @contextmanager
    def open(self, path: str, body: Any = None) -> Iterator[http.client.HTTPResponse]:
        """GET, or POST where there is a body. What the block reads may fail, and is told in the same words."""
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, timeout=self.timeout)
        used: socket.socket | None = None
        try:
            sent = None if body is None else json.dumps(body)
            connection.request("GET" if body is None else "POST", self._prefix + path, sent, self._headers)
            if (used := connection.sock) is not None:
                self._sockets.add(used)
            yield connection.getresponse()
        except TimeoutError:
            raise ServerError(f"the server at {self.url} said nothing for {self.timeout:g} s") from None
        except (ConnectionResetError, BrokenPipeError, http.client.HTTPException):
            raise ServerError(f"the server at {self.url} dropped the connection: its log may say why") from None
        except OSError as error:
            raise ServerError(f"no server answers at {self.url}: {error.strerror or error}") from None
        finally:
            if used is not None:
                self._sockets.discard(used)
            connection.close()

    def hang_up(self) -> None:
        """End the calls under way: a thread that waits for a word gets none."""
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def ask(self, path: str, body: Any = None) -> tuple[int, str]:
        """Status and text of a whole answer."""
        with self.open(path, body) as answer:
            return answer.status, answer.read().decode(errors="replace")

    def ask_json(self, path: str, body: Any = None) -> Any:
        """A JSON answer, or None where the server has no such thing to offer."""
        status, text = self.ask(path, body)
        try:
            return json.loads(text) if status == 200 else None
        except (ValueError, RecursionError):
            return None
