"""HTTP with the standard library: one sentence for whatever goes wrong between here and a server."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from xshare.engines.proxy import Proxy, proxy_for
from xshare.errors import XShareError
from xshare.files import is_file, quoted_path

KEY = "OPENAI_API_KEY"  # as the clients of such servers have it


class ServerError(XShareError):
    """A server that does not answer, stops answering, or refuses what it is asked."""


@dataclass(frozen=True)
class Access:
    """How to be let in. Neither stands in any result: a key is a secret, and a certificate changes no answer."""

    key: str | None = field(default=None, repr=False)  # None: OPENAI_API_KEY, if that is set
    ca_file: Path | None = None  # certificates to trust beside those of the system, or of SSL_CERT_FILE


def refusal(results: Any) -> str | None:
    """The sentence with which a worker refused a call, from the list of all workers' answers; None: none refused."""
    answers = results if isinstance(results, list) else []
    return next((str(it["error"]) for it in answers if isinstance(it, dict) and [*it] == ["error"]), None)


def as_json(text: str) -> Any:
    """The JSON value in a text; None where it is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class Http:
    """A server by its address. Every call has a connection of its own, so that threads may call."""

    def __init__(self, url: str, timeout: float, access: Access | None = None) -> None:
        parts = urlsplit(url)
        if parts.username is not None:  # it would stand in results, and in whatever shows the address
            raise ServerError(
                f"server {parts.hostname or ''!r} must be named without a user or password: give its key by --api-key "
                f"or {KEY}"
            )
        try:
            well_formed = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is no number
            well_formed = False
        if not well_formed:
            raise ServerError(f"server {url!r} is no address: expected one as http://127.0.0.1:8000")
        self.url, self.timeout, self.access = url.rstrip("/").removesuffix("/v1"), timeout, access or Access()
        self._secure, self._host = parts.scheme == "https", parts.netloc
        self._prefix = urlsplit(self.url).path
        self._proxy = proxy_for(parts.scheme, parts.netloc)
        self._headers = {"Content-Type": "application/json"} | _bearer(self.access.key or os.environ.get(KEY))
        if self._proxy is not None and not self._secure:
            self._headers |= self._proxy.headers
            self._prefix = f"{parts.scheme}://{self._host}{self._prefix}"  # a proxy is asked for the whole address
        self._sockets: set[socket.socket] = set()  # of open calls

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """With the system's certificates, or those that SSL_CERT_FILE and SSL_CERT_DIR name."""
        context, ca_file = ssl.create_default_context(), self.access.ca_file
        if ca_file is not None:
            if not is_file(ca_file):
                raise ServerError(f"certificate file {quoted_path(ca_file)} does not exist or is not a file")
            try:
                context.load_verify_locations(ca_file)
            except (ssl.SSLError, OSError):
                raise ServerError(f"certificate file {quoted_path(ca_file)} holds no certificate in PEM form") from None
        return context

    def _connection(self) -> http.client.HTTPConnection:
        proxy: Proxy | None = self._proxy
        host, port = (self._host, None) if proxy is None else (proxy.host, proxy.port)
        if not self._secure:
            return http.client.HTTPConnection(host, port, timeout=self.timeout)
        connection = http.client.HTTPSConnection(host, port, timeout=self.timeout, context=self._tls)
        if proxy is not None:
            target = urlsplit(self.url)
            connection.set_tunnel(target.hostname or "", target.port or 443, headers=proxy.headers)
        return connection

    @contextmanager
    def open(self, path: str, body: Any = None) -> Iterator[http.client.HTTPResponse]:
        """GET, or POST where there is a body. Errors while the block reads are raised in the same words."""
        connection = self._connection()
        used: socket.socket | None = None
        try:
            sent = None if body is None else json.dumps(body)
            connection.request("GET" if body is None else "POST", self._prefix + path, sent, self._headers)
            if (used := connection.sock) is not None:
                self._sockets.add(used)
            answer = connection.getresponse()
            if answer.status == 407:
                raise ServerError(f"the proxy {self._proxy} asks for a user and a password: http://USER:PASSWORD@HOST")
            yield answer
        except TimeoutError:
            raise ServerError(f"the server at {self.url} said nothing for {self.timeout:g} s") from None
        except (ConnectionResetError, BrokenPipeError, http.client.HTTPException):
            raise ServerError(f"the server at {self.url} dropped the connection: its log may say why") from None
        except ssl.SSLCertVerificationError as error:
            raise ServerError(
                f"the certificate of the server at {self.url} is not trusted, {error.verify_message}: name the file of "
                "its authority, by --ca-file or SSL_CERT_FILE"
            ) from None
        except ssl.SSLError as error:
            raise ServerError(f"the server at {self.url} speaks no TLS that is known here: {error.reason}") from None
        except OSError as error:
            by = "" if self._proxy is None else f" through the proxy {self._proxy}"
            raise ServerError(f"no server answers at {self.url}{by}: {error.strerror or error}") from None
        finally:
            if used is not None:
                self._sockets.discard(used)
            connection.close()

    def hang_up(self) -> None:
        """End all open calls, so that no thread waits for an answer."""
        for open_socket in list(self._sockets):
            with suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)

    def ask(self, path: str, body: Any = None) -> tuple[int, str]:
        """Status and text of a whole answer."""
        with self.open(path, body) as answer:
            return answer.status, answer.read().decode(errors="replace")

    def ask_json(self, path: str, body: Any = None) -> Any:
        """A JSON answer, or None where the server has no such thing to offer."""
        status, text = self.ask(path, body)
        return as_json(text) if status == 200 else None

    def check_let_in(self, status: int) -> None:
        """Refuse an answer which says that the key is missing or wrong."""
        if status in (401, 403):
            problem = "does not accept the key that was given" if "Authorization" in self._headers else "asks for a key"
            raise ServerError(f"the server at {self.url} {problem} (HTTP {status}): --api-key or {KEY} names it")


def _bearer(key: str | None) -> dict[str, str]:
    """The header that carries a key. One that cannot be in a header is refused without being shown."""
    if not key:
        return {}
    if not key.isascii() or not key.isprintable():
        raise ServerError("the API key holds characters that no HTTP header may: expected printable ASCII")
    return {"Authorization": f"Bearer {key}"}
