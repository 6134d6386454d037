"""The proxy that the environment names for a server: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, and NO_PROXY for none."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from xshare.errors import XShareError


@dataclass(frozen=True)
class Proxy:
    host: str
    port: int
    headers: dict[str, str] = field(default_factory=dict, repr=False)  # its user and password, if it has some

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def proxy_for(scheme: str, host: str) -> Proxy | None:
    """The proxy for a server, or None. `host`: with its port, as NO_PROXY may name it."""
    proxies = getproxies()
    url = proxies.get(scheme) or proxies.get("all")
    if not url or proxy_bypass(host):
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port or 80
    except ValueError:  # no number
        port = None
    if parts.scheme != "http" or not parts.hostname or port is None:
        shown = f"{parts.scheme}://{parts.hostname or ''}"  # without its password
        raise XShareError(f"proxy {shown!r} of the environment cannot be used: expected one as http://127.0.0.1:3128")
    if parts.username is None:
        return Proxy(parts.hostname, port)
    secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return Proxy(parts.hostname, port, {"Proxy-Authorization": f"Basic {base64.b64encode(secret).decode()}"})
