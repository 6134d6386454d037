"""The requests of a campaign, kind by kind, each with what its answer must be."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from lib.soak_server import MAX_TOKENS, NAME
from xshare.results import Row

LONGEST = 96  # tokens of an answer
COMPARED = 32  # tokens of a protected answer that is compared with native's
# Natively the next best token must be so many nats behind at every step: another batch rounds otherwise, and where two
# tokens are nearly alike either may win.
MARGIN = 0.2
EXACT = {"vllm_xargs": {"xshare": "exact"}}


class Wrong(Exception):
    """An answer that is not what it must be."""


@dataclass
class Counted:
    """What the server's own counters must agree with."""

    ended: int = 0  # answers that came to their end
    tokens: int = 0  # of those
    given_up: int = 0  # requests whose client hung up
    tokens_given_up: int = 0  # that those would have had at most
    compared: int = 0  # protected answers that were held against native's


@dataclass
class Asking:
    """What requests are made from, and counted in."""

    client: httpx.AsyncClient
    dice: random.Random
    prompts: list[str]
    native: dict[str, list[int]] = field(default_factory=dict)  # tokens by prompt, of greedy answers
    counted: Counted = field(default_factory=Counted)

    def body(self, **more: Any) -> Row:
        tokens = self.dice.randrange(1, LONGEST)
        found = {"model": NAME, "prompt": self.dice.choice(self.prompts), "max_tokens": tokens, "ignore_eos": True}
        return found | {"temperature": self.dice.choice([0, 1])} | more

    async def answer(self, body: Row) -> Row:
        """A whole answer."""
        return _read(await self.client.post("/v1/completions", json=body))

    async def stream(self, body: Row) -> AsyncIterator[Row]:
        """Its pieces. An answer without [DONE] at its end is wrong."""
        async with self.client.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
            if answer.status_code != 200:
                await answer.aread()
                _read(answer)
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    return
                if line.startswith("data: "):
                    piece: Row = json.loads(line.removeprefix("data: "))
                    if "error" in piece:
                        raise Wrong(f"an error in a stream: {str(piece['error'])[:200]}")
                    yield piece
        raise Wrong("a stream without an end")


Kind = Callable[[Asking], Awaitable[None]]


def _read(answer: httpx.Response) -> Row:
    if answer.status_code != 200:
        raise Wrong(f"status {answer.status_code}: {answer.text[:200]}")
    found: Row = answer.json()
    return found


def _expect(what: str, got: Any, wanted: Any) -> None:
    if got != wanted:
        raise Wrong(f"{what} {got}, expected {wanted}")


# Requests that are answered


async def whole(asking: Asking) -> None:
    """One answer or two to a prompt, each as long as was asked for."""
    body = asking.body(n=asking.dice.choice([1, 1, 1, 2]), temperature=1)
    found = await asking.answer(body)
    _expect("finish reasons", [each["finish_reason"] for each in found["choices"]], ["length"] * body["n"])
    _expect("tokens", found["usage"]["completion_tokens"], body["n"] * body["max_tokens"])
    asking.counted.ended += body["n"]
    asking.counted.tokens += body["n"] * body["max_tokens"]


async def to_its_end(asking: Asking) -> None:
    """An answer that may stop by itself."""
    body = asking.body(ignore_eos=False, temperature=0)
    found = await asking.answer(body)
    (choice,), tokens = found["choices"], found["usage"]["completion_tokens"]
    if choice["finish_reason"] == "length":
        _expect("tokens", tokens, body["max_tokens"])
    else:
        _expect("finish reason", choice["finish_reason"], "stop")
        _expect("at most as many tokens as were asked for:", tokens <= body["max_tokens"], True)
    asking.counted.ended += 1
    asking.counted.tokens += tokens


async def streamed(asking: Asking, **more: Any) -> None:
    body = asking.body(return_token_ids=True, stream_options={"include_usage": True}, **more)
    tokens, reasons, used = 0, [], None
    async for piece in asking.stream(body):
        for choice in piece["choices"]:
            tokens += len(choice.get("token_ids") or [])
            reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
        used = piece["usage"]["completion_tokens"] if piece.get("usage") else used
    _expect("finish reasons", reasons, ["length"])
    _expect("tokens", tokens, body["max_tokens"])
    _expect("tokens by usage", used, body["max_tokens"])
    asking.counted.ended += 1
    asking.counted.tokens += tokens


async def protected_streamed(asking: Asking) -> None:
    await streamed(asking, **EXACT)


async def protected(asking: Asking) -> None:
    """Greedy: the tokens must be native's, whatever policy serves the others."""
    if not asking.native:
        return await protected_streamed(asking)
    prompt = asking.dice.choice([*asking.native])
    found = await asking.answer(_greedy(prompt) | EXACT)
    asking.counted.ended += 1
    asking.counted.tokens += COMPARED
    asking.counted.compared += 1
    _expect(f"tokens of a protected answer to {prompt!r}:", found["choices"][0]["token_ids"], asking.native[prompt])


def _greedy(prompt: str) -> Row:
    """A request whose answer can be compared."""
    fixed = {"max_tokens": COMPARED, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    return {"model": NAME, "prompt": prompt} | fixed


async def native_answers(asking: Asking) -> dict[str, list[int]]:
    """By prompt, of those without a near tie. Selection must be off."""
    found = {}
    for prompt in asking.prompts:
        (choice,) = (await asking.answer(_greedy(prompt) | {"logprobs": 2}))["choices"]
        asking.counted.ended += 1
        asking.counted.tokens += COMPARED
        ranked = [sorted(best.values(), reverse=True) for best in choice["logprobs"]["top_logprobs"]]
        if all(len(best) > 1 and best[0] - best[1] > MARGIN for best in ranked):
            found[prompt] = choice["token_ids"]
    return found


# Clients that hang up


async def hang_up(asking: Asking) -> None:
    """In the middle of a stream, or before its first token has come."""
    body, pieces = asking.body(max_tokens=LONGEST), asking.dice.randrange(6)
    asking.counted.given_up += 1
    asking.counted.tokens_given_up += LONGEST
    stream = asking.stream(body)
    try:
        async for _ in stream:
            if (pieces := pieces - 1) < 0:
                return
    finally:
        await stream.aclose()  # type: ignore[attr-defined]


async def cancel(asking: Asking) -> None:
    """While a whole answer is being waited for."""
    asking.counted.given_up += 1
    asking.counted.tokens_given_up += LONGEST
    try:
        async with asyncio.timeout(asking.dice.random() * 0.3):
            await asking.answer(asking.body(max_tokens=LONGEST))
    except TimeoutError:
        return


# Requests that are refused

OWN = "xshare of a request"
BEAMS: Row = {"use_beam_search": True, "n": 2} | EXACT
# By kind: what a request says beside the usual, the status, and how the sentence begins where it is XShare's own.
REFUSED: dict[str, tuple[Row | bytes, int, str]] = {
    "xshare of no kind": ({"vllm_xargs": {"xshare": "precise"}}, 400, f"{OWN} must be 'exact' or 'shared'"),
    "xshare a number": ({"vllm_xargs": {"xshare": 3}}, 400, f"{OWN} must be 'exact' or 'shared'"),
    "protected beams": (BEAMS, 400, f"{OWN} cannot be chosen with beam search"),
    "the salt of protected ones": ({"cache_salt": "xshare-exact:mine"}, 400, "cache_salt must not begin with"),
    "vllm_xargs no object": ({"vllm_xargs": "exact"}, 400, ""),
    "no JSON": (b'{"model": "soaked", "prompt": ', 400, ""),
    "too long": ({"prompt": "one two " * MAX_TOKENS}, 400, ""),
    "negative max_tokens": ({"max_tokens": -1}, 400, ""),
    "temperature a word": ({"temperature": "hot"}, 400, ""),
    "another model": ({"model": "another"}, 404, ""),
}


def refused(name: str) -> Kind:
    wrong, status, sentence = REFUSED[name]

    async def ask(asking: Asking) -> None:
        if isinstance(wrong, bytes):
            answer = await asking.client.post(
                "/v1/completions", content=wrong, headers={"Content-Type": "application/json"}
            )
        else:
            answer = await asking.client.post("/v1/completions", json=asking.body() | wrong)
        _expect("status", answer.status_code, status)
        said = answer.json()["error"]["message"]
        _expect("an error that begins as it must:", said[: len(sentence)], sentence)

    return ask


# All together: how often each comes, of the sum of these
ANSWERED: dict[str, tuple[Kind, float]] = {
    "whole": (whole, 5),
    "to its end": (to_its_end, 4),
    "streamed": (streamed, 5),
    "protected": (protected, 4),
    "protected, streamed": (protected_streamed, 2),
    "hangs up": (hang_up, 3),
    "cancelled": (cancel, 2),
}


def kinds(with_xshare: bool) -> dict[str, tuple[Kind, float]]:
    """Without XShare nobody refuses what it alone would refuse."""
    bad = [name for name, (_, _, sentence) in REFUSED.items() if with_xshare or not sentence]
    return ANSWERED | {name: (refused(name), 0.3) for name in bad}
