"""The kinds of requests of a campaign, each with what its answer must be."""

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
# Under native routing the second-best token must be this many nats behind at every step: another batch rounds
# differently, and of two tokens that are nearly tied either may win.
MARGIN = 0.2
EXACT = {"vllm_xargs": {"xshare": "exact"}}


class WrongAnswer(Exception):
    """An answer that is not what it must be."""


@dataclass
class Counted:
    """What the server's own counters must agree with."""

    ended: int = 0  # answers that came to their end
    tokens: int = 0  # in those answers
    given_up: int = 0  # requests whose client hung up
    tokens_given_up: int = 0  # max_tokens of those, summed
    compared: int = 0  # protected answers that were compared with native's


@dataclass
class Session:
    """What a client makes requests from, and where it counts them."""

    client: httpx.AsyncClient
    dice: random.Random
    prompts: list[str]
    native: dict[str, list[int]] = field(default_factory=dict)  # tokens by prompt, of greedy answers
    counted: Counted = field(default_factory=Counted)

    def body(self, **fields: Any) -> Row:
        tokens = self.dice.randrange(1, LONGEST)
        base = {"model": NAME, "prompt": self.dice.choice(self.prompts), "max_tokens": tokens, "ignore_eos": True}
        return base | {"temperature": self.dice.choice([0, 1])} | fields

    async def answer(self, body: Row) -> Row:
        """A whole answer."""
        return _read(await self.client.post("/v1/completions", json=body))

    async def stream(self, body: Row) -> AsyncIterator[Row]:
        """The pieces of a streamed answer. An answer without [DONE] at its end is wrong."""
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
                        raise WrongAnswer(f"an error in a stream: {str(piece['error'])[:200]}")
                    yield piece
        raise WrongAnswer("a stream without an end")


Kind = Callable[[Session], Awaitable[None]]


def _read(answer: httpx.Response) -> Row:
    if answer.status_code != 200:
        raise WrongAnswer(f"status {answer.status_code}: {answer.text[:200]}")
    content: Row = answer.json()
    return content


def _expect(what: str, got: Any, expected: Any) -> None:
    if got != expected:
        raise WrongAnswer(f"{what} {got}, expected {expected}")


# Requests that are answered


async def whole(session: Session) -> None:
    """One answer or two to a prompt, each of exactly max_tokens."""
    body = session.body(n=session.dice.choice([1, 1, 1, 2]), temperature=1)
    answer = await session.answer(body)
    _expect("finish reasons", [choice["finish_reason"] for choice in answer["choices"]], ["length"] * body["n"])
    _expect("tokens", answer["usage"]["completion_tokens"], body["n"] * body["max_tokens"])
    session.counted.ended += body["n"]
    session.counted.tokens += body["n"] * body["max_tokens"]


async def to_its_end(session: Session) -> None:
    """An answer that may end with the end-of-sequence token."""
    body = session.body(ignore_eos=False, temperature=0)
    answer = await session.answer(body)
    (choice,), tokens = answer["choices"], answer["usage"]["completion_tokens"]
    if choice["finish_reason"] == "length":
        _expect("tokens", tokens, body["max_tokens"])
    else:
        _expect("finish reason", choice["finish_reason"], "stop")
        _expect("at most as many tokens as were asked for:", tokens <= body["max_tokens"], True)
    session.counted.ended += 1
    session.counted.tokens += tokens


async def streamed(session: Session, **fields: Any) -> None:
    body = session.body(return_token_ids=True, stream_options={"include_usage": True}, **fields)
    tokens, reasons, used = 0, [], None
    async for piece in session.stream(body):
        for choice in piece["choices"]:
            tokens += len(choice.get("token_ids") or [])
            reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
        used = piece["usage"]["completion_tokens"] if piece.get("usage") else used
    _expect("finish reasons", reasons, ["length"])
    _expect("tokens", tokens, body["max_tokens"])
    _expect("tokens by usage", used, body["max_tokens"])
    session.counted.ended += 1
    session.counted.tokens += tokens


async def protected_streamed(session: Session) -> None:
    await streamed(session, **EXACT)


async def protected(session: Session) -> None:
    """Greedy: the tokens must be native's, whatever policy serves the others."""
    if not session.native:
        return await protected_streamed(session)
    prompt = session.dice.choice([*session.native])
    answer = await session.answer(_greedy(prompt) | EXACT)
    session.counted.ended += 1
    session.counted.tokens += COMPARED
    session.counted.compared += 1
    _expect(f"tokens of a protected answer to {prompt!r}:", answer["choices"][0]["token_ids"], session.native[prompt])


def _greedy(prompt: str) -> Row:
    """A request whose answer can be compared."""
    fixed = {"max_tokens": COMPARED, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    return {"model": NAME, "prompt": prompt} | fixed


async def native_answers(session: Session) -> dict[str, list[int]]:
    """Native tokens by prompt, for the prompts without a near tie. Selection must be off."""
    tokens_by_prompt = {}
    for prompt in session.prompts:
        (choice,) = (await session.answer(_greedy(prompt) | {"logprobs": 2}))["choices"]
        session.counted.ended += 1
        session.counted.tokens += COMPARED
        ranked = [sorted(best.values(), reverse=True) for best in choice["logprobs"]["top_logprobs"]]
        if all(len(best) > 1 and best[0] - best[1] > MARGIN for best in ranked):
            tokens_by_prompt[prompt] = choice["token_ids"]
    return tokens_by_prompt


# Clients that hang up


async def hang_up(session: Session) -> None:
    """Hang up in the middle of a stream, or before its first token."""
    body, pieces = session.body(max_tokens=LONGEST), session.dice.randrange(6)
    session.counted.given_up += 1
    session.counted.tokens_given_up += LONGEST
    stream = session.stream(body)
    try:
        async for _ in stream:
            if (pieces := pieces - 1) < 0:
                return
    finally:
        await stream.aclose()  # type: ignore[attr-defined]


async def cancel(session: Session) -> None:
    """Cancel a request while waiting for its whole answer."""
    session.counted.given_up += 1
    session.counted.tokens_given_up += LONGEST
    try:
        async with asyncio.timeout(session.dice.random() * 0.3):
            await session.answer(session.body(max_tokens=LONGEST))
    except TimeoutError:
        return


# Requests that are refused

OWN = "xshare of a request"
BEAMS: Row = {"use_beam_search": True, "n": 2} | EXACT
# By kind: the fields that a request adds or replaces, the status, and how the sentence begins where it is XShare's own.
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

    async def ask(session: Session) -> None:
        if isinstance(wrong, bytes):
            answer = await session.client.post(
                "/v1/completions", content=wrong, headers={"Content-Type": "application/json"}
            )
        else:
            answer = await session.client.post("/v1/completions", json=session.body() | wrong)
        _expect("status", answer.status_code, status)
        message = answer.json()["error"]["message"]
        _expect("an error that begins as it must:", message[: len(sentence)], sentence)

    return ask


# By kind: the request, and its weight in the mix
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
    """All kinds with their weights. Without XShare, what only XShare refuses is left out."""
    bad = [name for name, (_, _, sentence) in REFUSED.items() if with_xshare or not sentence]
    return ANSWERED | {name: (refused(name), 0.3) for name in bad}
