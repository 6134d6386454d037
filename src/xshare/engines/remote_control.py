"""Live control of a server over HTTP, in the way that each kind of server offers."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from xshare.engines.client import Http, refusal
from xshare.engines.counters import over_workers


class Remote(Protocol):
    way_in: ClassVar[str]  # how a server has to be started
    refusal: str | None  # the sentence of the last refusal, where there was one

    def stats(self) -> dict[str, Any] | None:
        """The counters of all workers together; None where the server has no XShare."""

    def call(self, method: str, value: Any) -> bool:
        """Call a method of live control; whether the server did it."""


class Vllm:
    """By /collective_rpc, which a server in development mode has."""

    way_in: ClassVar[str] = "with VLLM_SERVER_DEV_MODE=1 and an xshare key in --additional-config"

    def __init__(self, http: Http) -> None:
        self.http = http
        self.refusal: str | None = None

    def stats(self) -> dict[str, Any] | None:
        answers = self._rpc("xshare_stats") or [None]
        return over_workers(answers) if isinstance(answers[0], dict) else None

    def call(self, method: str, value: Any) -> bool:
        return self._rpc(method, value) is not None

    def _rpc(self, method: str, *args: Any) -> Any:
        """A result from each worker; None where the server offers no such thing, the call failed, or it was refused."""
        answer = self.http.ask_json("/collective_rpc", {"method": method, "args": list(args)})
        results = answer.get("results") if isinstance(answer, dict) else None
        self.refusal = refusal(results)
        return results if self.refusal is None else None


class Sglang:
    """By /set_internal_state, which takes numbers by name, and /server_info."""

    way_in: ClassVar[str] = "with XSHARE in its environment"

    def __init__(self, http: Http) -> None:
        self.http = http
        self.refusal: str | None = None

    def stats(self) -> dict[str, Any] | None:
        states = (self.http.ask_json("/server_info") or {}).get("internal_states")
        first = states[0] if isinstance(states, list) and states else None
        stats = first.get("xshare") if isinstance(first, dict) else None
        return stats if isinstance(stats, dict) else None

    def call(self, method: str, value: Any) -> bool:
        name, number = (f"{method} {value}", 1) if isinstance(value, str) else (method, int(value))
        response = self.http.ask_json("/set_internal_state", {"server_args": {name: number}})
        answers = response if isinstance(response, list) else [response]
        done = bool(answers) and all(answer is True or _updated(answer) for answer in answers)
        self.refusal = None if done else (self.stats() or {}).get("refused")
        return done


def _updated(answer: Any) -> bool:
    return isinstance(answer, dict) and answer.get("updated") is True


def sglang_version(http: Http) -> str | None:
    """None where the server is none of SGLang's."""
    info = http.ask_json("/server_info")
    is_sglang = isinstance(info, dict) and "internal_states" in info
    return str(info.get("version")) if is_sglang else None
