"""A running OpenAI-compatible server as an engine, by its address: completions are streamed, and each chunk timed.

A vLLM server in development mode (VLLM_SERVER_DEV_MODE=1) with an `xshare` key changes its policy live, and so does an
SGLang server that was started with XSHARE. Any other is measured as it runs: `about.policy` then says what that is.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from xshare.engines import remote_control as remote
from xshare.engines.base import About, Answer, BeforeStep, Divergence, Run, leaving
from xshare.engines.chat import Messages, turn
from xshare.engines.client import Access, Http, ServerError, as_json
from xshare.engines.counters import FIGURES, Stats, layer_numbers, since
from xshare.engines.prometheus_text import Sample, samples
from xshare.policy import Policy
from xshare.progress import Advance, quiet
from xshare.staircase import Stairs

COUNTERS = ("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total")


class ServerEngine:
    forces = False
    room: int | None = None

    def __init__(
        self,
        url: str,
        model: str | None = None,
        timeout: float = 120.0,
        stairs: Stairs | None = None,
        access: Access | None = None,
    ) -> None:
        """`model` is the served name, where the server has several. `timeout`: seconds of silence before it gives up.
        `stairs`: the staircase that the server must have been started with."""
        if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not 0 < timeout < 1e6:
            raise ServerError(f"timeout must be a number of seconds above 0, not {timeout!r}")
        self.http = Http(url, timeout, access)
        status, text = self.http.ask("/v1/models")
        self.http.check_let_in(status)
        answer = as_json(text) if status == 200 else None
        listed = answer.get("data") if isinstance(answer, dict) else None
        names = [entry["id"] for entry in listed or [] if isinstance(entry, dict) and "id" in entry]
        if not names or (model is not None and model not in names):
            served = f"it serves {', '.join(names)}" if names else "it lists no model at /v1/models"
            raise ServerError(f"the server at {self.http.url} does not serve {model or 'anything'}: {served}")
        self.model = model or names[0]
        version = self.http.ask_json("/version")  # of vLLM's
        self._vllm = isinstance(version, dict) and "version" in version
        sglang = None if self._vllm else remote.sglang_version(self.http)
        self.remote: remote.Remote = remote.Vllm(self.http) if sglang is None else remote.Sglang(self.http)
        tokenized = self.http.ask_json("/tokenize", {"model": self.model, "prompt": "a"})
        stats = self.remote.stats()
        self.live = stats is not None
        kind = "vllm server" if self._vllm else "server" if sglang is None else "sglang server"
        self.about = About(
            engine=kind,
            version=version["version"] if self._vllm else sglang,
            model=self.model,
            device=self.http.url,
            prompt_form="ids" if isinstance(tokenized, dict) and "tokens" in tokenized else "text",
        )
        self._before: dict[str, Any] = {}
        self._found: dict[str, Any] = stats or {}  # what it did before anyone changed it
        self.serves = Policy.parse(self._found["policy"]) if self.live and self._found["on"] else None
        if stats is not None:
            self.about.experts, self.about.top_k = stats["experts"], stats["top_k"]
            self.about.layers = len(stats["layers"])
            self.about.backend = stats.get("backend")
            self.about.layer_numbers = layer_numbers(stats["layers"])
            self._before = stats
        else:
            self.about.policy, self.about.cost = self._running(), self._weighs() or None
        self._cost = bool(self._found.get("cost"))  # as it is now
        if stairs is not None and self._found.get("stairs") != stairs.sha256:
            raise ServerError(
                f"the server at {self.http.url} cannot weigh sets by {stairs.name}: start it with that file as cost, "
                f"and {self.remote.way_in}"
            )

    # The policy

    def use(self, policy: Policy | None, timed: bool = False, cost: bool | None = None) -> None:
        wanted = "native" if policy is None else str(policy)
        weighed = bool(self._found.get("cost")) if cost is None else cost
        if cost and not self._found.get("stairs"):
            raise ServerError(
                f"the server at {self.http.url} cannot be told to weigh sets by what they cost: start it with cost, "
                f"and {self.remote.way_in}"
            )
        if self.live:
            calls: list[tuple[str, Any]] = [("xshare_switch", policy is not None)]
            if policy is not None:
                calls.insert(0, ("xshare_set", wanted))
            if weighed != self._cost:
                calls.append(("xshare_cost", weighed))
            for method, value in calls:
                if not self.remote.call(method, value):
                    why = self.remote.refusal or "its log says why"
                    raise ServerError(f"the server at {self.http.url} refuses the policy {wanted}: {why}")
            self._cost = weighed
            self._before = self._read_stats()
        elif wanted != (running := self._running()):
            raise ServerError(
                f"the server at {self.http.url} runs {running} and cannot be changed to {wanted}: start it "
                f"{self.remote.way_in}, or ask for {running} alone"
            )

    def change(self, policy: Policy) -> None:
        raise ServerError("a server's policy cannot change between two steps, which are its own: measure in process")

    def _read_stats(self) -> dict[str, Any]:
        stats = self.remote.stats()
        if stats is None:
            why = self.remote.refusal or "its log may say why"
            raise ServerError(f"the server at {self.http.url} no longer answers xshare_stats: {why}")
        return stats

    def _running(self) -> str:
        """The policy that the server runs, as far as its metrics say."""
        on = [sample.labels for sample in self._metrics() if sample.name == "xshare:on" and sample.value == 1]
        return on[0].get("policy", "native") if on else "native"

    def _weighs(self) -> bool:
        """Whether costs count in the server, as far as its metrics say."""
        return any(sample.name == "xshare:cost" and sample.value == 1 for sample in self._metrics())

    def _metrics(self) -> list[Sample]:
        status, text = self.http.ask("/metrics")
        return list(samples(text)) if status == 200 else []

    def stats(self) -> Stats:
        """With live control since `use`; otherwise what /metrics holds since the server started."""
        if self.live:
            return since(self._before, self._read_stats())
        stats = Stats()
        for sample in self._metrics():
            if sample.name == "xshare:steps_pruned_total":
                stats.steps_pruned = int(sample.value)
            elif sample.name == "xshare:steps_bypassed_total" and "reason" in sample.labels:
                stats.steps_bypassed[sample.labels["reason"]] = int(sample.value)
            elif (figure := sample.name.removeprefix("xshare:")) in FIGURES:
                stats.by_layer.setdefault(figure, []).append(sample.value)
        stats.mean = {name: sum(values) / len(values) for name, values in stats.by_layer.items()}
        return stats

    def count_all(self, on: bool) -> None:
        raise ServerError("how often a server counts is its own setting: metrics.every in its xshare key")

    # Completions

    def run(
        self,
        prompts: Sequence[Sequence[int] | str],
        *,
        limit: int,
        batch: int,
        arrivals: Sequence[float] | None = None,
        to_the_end: bool = False,
        advance: Advance = quiet,
        before: BeforeStep | None = None,
        stop: Sequence[str] = (),
        protected: Collection[int] | None = None,
    ) -> Run:
        """As every engine; a prompt may be text too. Steps are the server's own, so that none are counted."""
        if before is not None:
            raise ServerError("nobody is told before the steps of a server, which are its own: measure in process")
        if protected is not None and not self._vllm:
            raise ServerError(f"requests can be protected by a vLLM server alone, and {self.http.url} is none")
        due = arrivals or [0.0] * len(prompts)
        body: dict[str, Any] = {"model": self.model, "max_tokens": limit, "temperature": 0, "stream": True}
        if to_the_end:
            body["ignore_eos"] = True
        if stop:
            body["stop"] = list(stop)
        if self._vllm:
            body["return_token_ids"] = True
        hung_up = threading.Event()
        drafts = self._draft_counters()
        start = time.perf_counter()

        ended: dict[int, Answer] = {}

        def complete(index: int) -> None:
            answer = Answer([], "", due[index])
            hung_up.wait(max(0.0, start + due[index] - time.perf_counter()))
            if not hung_up.is_set():
                prompt = prompts[index]
                request = body | {"prompt": prompt if isinstance(prompt, str) else list(prompt)}
                if protected is not None:
                    request["vllm_xargs"] = {"xshare": "exact" if index in protected else "shared"}
                self._stream(request, answer, start, hung_up)
            if not hung_up.is_set():
                ended[index] = answer

        with leaving(lambda _: [ended.get(index) for index in range(len(prompts))]), ThreadPoolExecutor(batch) as pool:
            order = sorted(range(len(prompts)), key=lambda index: due[index])
            calls = [pool.submit(complete, index) for index in order]
            try:
                for call in as_completed(calls):
                    call.result()
                    advance(1)
            except BaseException:
                hung_up.set()  # one failed, or the user interrupted: the others need not continue
                self.http.hang_up()
                raise
        drafted, accepted = (int(b - a) for a, b in zip(drafts, self._draft_counters(), strict=True))
        return Run([ended[index] for index in range(len(prompts))], drafted=drafted, accepted=accepted)

    def diverge(
        self,
        prompts: Sequence[Sequence[int]],
        answers: Sequence[Sequence[int]],
        batch: int,
        advance: Advance = quiet,
    ) -> Divergence:
        raise ServerError("a text cannot be forced behind a server: measure KL and perplexity in process")

    def _stream(self, body: dict[str, Any], answer: Answer, start: float, hung_up: threading.Event) -> None:
        """Fill `answer` as its chunks come."""
        with self.http.open("/v1/completions", body) as stream:
            if stream.status != 200:
                raise ServerError(
                    f"the server at {self.http.url} refuses a completion: {_error_sentence(stream.read())}"
                )
            for line in iter(stream.readline, b""):
                now = time.perf_counter() - start
                if hung_up.is_set() or line.strip() == b"data: [DONE]":
                    return
                if line.startswith(b"data: "):
                    chunk = self._read(line.removeprefix(b"data: "))
                    if "error" in chunk:
                        raise ServerError(
                            f"the server at {self.http.url} gave up on a completion: {_error_sentence(line[6:])}"
                        )
                    for choice in chunk.get("choices", []):
                        ids, text = choice.get("token_ids") or [], choice.get("text") or ""
                        answer.tokens += ids
                        answer.text += text
                        answer.times_s += [now] * (len(ids) or bool(text))  # elsewhere a chunk is a token
        raise ServerError(f"the server at {self.http.url} ended a completion after {len(answer.times_s)} tokens")

    def _read(self, text: bytes) -> dict[str, Any]:
        try:
            chunk = json.loads(text)
        except (ValueError, RecursionError):
            chunk = None
        if not isinstance(chunk, dict):
            excerpt = text.decode(errors="replace").strip()[:80]
            raise ServerError(f"the server at {self.http.url} streams what is no JSON object: {excerpt!r}")
        return chunk

    def _draft_counters(self) -> tuple[float, float]:
        metrics = self._metrics() if self._vllm else []
        drafted, accepted = (sum(sample.value for sample in metrics if sample.name == counter) for counter in COUNTERS)
        return drafted, accepted

    def encode(self, text: str) -> list[int]:
        response = self.http.ask_json("/tokenize", {"model": self.model, "prompt": text})
        if not isinstance(response, dict) or "tokens" not in response:
            raise ServerError(f"the server at {self.http.url} has no /tokenize: give it prompts as text")
        ids: list[int] = response["tokens"]
        return ids

    def encode_chat(self, messages: Messages) -> list[int]:
        chat = {"model": self.model, "messages": [dict(message) for message in messages]} | turn(messages)
        response = self.http.ask_json("/tokenize", chat)
        if not isinstance(response, dict) or "tokens" not in response:
            raise ServerError(
                f"the server at {self.http.url} makes no prompt of a chat: its model has no chat template"
            )
        ids: list[int] = response["tokens"]
        return ids

    def close(self) -> None:
        """Restore the policy that the server ran at first, if it still answers: others may use it."""
        if not self.live:
            return
        try:
            restored = self.remote.call("xshare_set", self._found["policy"])
            # Rather off than on with what was tried last.
            restored &= self.remote.call("xshare_switch", self._found["on"] and restored)
            if self._cost != bool(self._found.get("cost")):
                restored &= self.remote.call("xshare_cost", not self._cost)
        except ServerError:
            restored = False
        if not restored:
            was = f"{self._found['policy']}, {'on' if self._found['on'] else 'off'}"
            print(f"warning: the server at {self.http.url} could not be set back to {was}", file=sys.stderr)


def _error_sentence(answer: bytes) -> str:
    """The sentence in a server's error."""
    try:
        error = json.loads(answer)
        error = error.get("error", error)
        return str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, AttributeError, RecursionError):
        return answer.decode(errors="replace").strip()[:200] or "it does not say why"
