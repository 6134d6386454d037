"""Protected requests: who asks for its native experts, of the requests that an engine has been told of."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import numpy as np

from xshare.engines.serving.settings import Settings
from xshare.engines.serving.state import Marks

KEY, EXACT, SHARED = "xshare", "exact", "shared"
SALT = "xshare-exact:"  # in front of the name that every protected request's blocks have in a cache of prefixes
SPARE = 4  # times as many requests as a step has may be remembered before those that have gone are looked for


def means_exact(value: Any, settings: Settings) -> bool:
    """Whether a request that says `value` is protected. What nobody has checked may be any value: whoever means
    something by it is better not pruned."""
    return settings.default == EXACT if value is None else bool(value != SHARED)


class Protected:
    """The requests that are, by their names."""

    def __init__(self, max_requests: int, alive: Callable[[], Container[str]]) -> None:
        """`alive`: the requests that the engine still knows."""
        self.most, self.alive = SPARE * max_requests, alive
        self.exact: set[str] = set()
        self._latest: tuple[list[str], Marks | None] | None = None

    def put(self, request: str, exact: bool) -> None:
        """A request has come, whose name an earlier one may have had."""
        self._latest = None
        (self.exact.add if exact else self.exact.discard)(request)

    def forget_gone(self) -> None:
        """Those that ended while nobody looked, once there are many."""
        if len(self.exact) > self.most:
            known = self.alive()
            self.exact = {request for request in self.exact if request in known}

    def of(self, requests: Sequence[str]) -> Marks | None:
        """Which of these are protected, the same array as long as they stay the same; None where none is."""
        if not self.exact:
            return None
        if self._latest is None or self._latest[0] != requests:
            marks = np.fromiter((request in self.exact for request in requests), np.bool_, len(requests))
            self._latest = list(requests), marks if marks.any() else None
        return self._latest[1]
