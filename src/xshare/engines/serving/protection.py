"""Protected requests: which of an engine's requests keep their native experts."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import numpy as np

from xshare.engines.serving.settings import Settings
from xshare.engines.serving.state import Marks

KEY, EXACT, SHARED = "xshare", "exact", "shared"
SALT = "xshare-exact:"  # prefix of protected requests' cache salt, so that the prefix cache keeps their blocks apart
SPARE = 4  # remember so many times the requests of a step before finished ones are looked for


def means_exact(value: Any, settings: Settings) -> bool:
    """Whether a request with this value is protected. The value may be unchecked: an unknown one protects, because
    its sender wanted something other than the default."""
    return settings.default == EXACT if value is None else bool(value != SHARED)


class ProtectedRequests:
    """The ids of the requests that are protected."""

    def __init__(self, max_requests: int, alive: Callable[[], Container[str]]) -> None:
        """`alive`: the requests that the engine still knows."""
        self.max_remembered, self.alive = SPARE * max_requests, alive
        self.exact: set[str] = set()
        self._latest: tuple[list[str], Marks | None] | None = None

    def put(self, request: str, exact: bool) -> None:
        """A request has arrived. An earlier one may have had the same id."""
        self._latest = None
        (self.exact.add if exact else self.exact.discard)(request)

    def forget_finished(self) -> None:
        """Forget requests that finished unnoticed, once there are many."""
        if len(self.exact) > self.max_remembered:
            known = self.alive()
            self.exact = {request for request in self.exact if request in known}

    def of(self, requests: Sequence[str]) -> Marks | None:
        """Which of these are protected; None where none is. It is the same array while `requests` stay the same."""
        if not self.exact:
            return None
        if self._latest is None or self._latest[0] != requests:
            marks = np.fromiter((request in self.exact for request in requests), np.bool_, len(requests))
            self._latest = list(requests), marks if marks.any() else None
        return self._latest[1]
