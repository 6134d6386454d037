"""Load on a server: clients that come and go for a while, live control beside them, and clients of a killed engine."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import httpx

from lib.soak_requests import LONGEST, Asking, Kind, Wrong
from lib.soak_server import MAX_TOKENS, NAME
from xshare.policy import Policy
from xshare.results import Row

CLIENTS = 24  # more than a step has room for: some wait
PAUSE = 2.0  # seconds at most between two changes, and for which a client may be silent
MOST_LOST = 100  # requests, after which the server is taken for dead
EXAMPLES = 10  # sentences that are kept of what went wrong
POLICIES = ("balanced", "careful", "fast", "k0=1,m=12", "k0=1,m=24,ml=0:8", "k0=2,m=0", "k0=1,m=0,mr=1", "k0=1,tau=0.8")
# What live control must refuse, and how the sentence begins.
REFUSED: tuple[tuple[str, Any, str], ...] = (
    ("xshare_switch", "off", "xshare_switch takes True or False"),
    ("xshare_set", "k9=1", "policy 'k9=1': unknown letter"),
    ("xshare_set", {"warmup": 1, "batch_budget": 10**19}, "batch_budget (m) must be"),
    ("xshare_count", 0, "xshare_count takes a number of steps"),
    ("xshare_sets", 1, "'xshare_sets' is no method of xshare"),
)


class Outcomes:
    """By kind of request: how many were sent, and what came of them."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.examples: list[str] = []

    async def of(self, kind: str, asked: Any) -> None:
        """Wait for one, and count it."""
        row = self.rows.setdefault(kind, {"kind": kind, "sent": 0, "right": 0, "lost": 0, "wrong": 0})
        row["sent"] += 1
        try:
            await asked
        except Wrong as error:
            self._not_right(row, "wrong", str(error))
        except (httpx.HTTPError, KeyError, ValueError, TypeError) as error:
            # No answer, or one of another form than any answer has.
            name = "lost" if isinstance(error, httpx.HTTPError) else "wrong"
            self._not_right(row, name, f"{type(error).__name__}: {error}")
        else:
            row["right"] += 1

    def _not_right(self, row: Row, how: str, sentence: str) -> None:
        row[how] += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"{row['kind']}, {how}: {sentence[:300]}")

    def sum(self, column: str) -> int:
        return sum(row[column] for row in self.rows.values())


async def clients(
    asking: Asking, kinds: dict[str, tuple[Kind, float]], seconds: float, outcomes: Outcomes, control: bool
) -> None:
    """CLIENTS of them for so long, and one that changes the policy."""
    end = time.monotonic() + seconds
    names, weights = [*kinds], [weight for _, weight in kinds.values()]

    async def client(number: int) -> None:
        await asyncio.sleep(number * min(0.2, seconds / CLIENTS / 2))
        for name in names[number::CLIENTS]:  # however short it is: every kind once
            await outcomes.of(name, kinds[name][0](asking))
        while time.monotonic() < end and outcomes.sum("lost") < MOST_LOST:
            (name,) = asking.dice.choices(names, weights)
            await outcomes.of(name, kinds[name][0](asking))
            if asking.dice.random() < 0.1:
                await asyncio.sleep(asking.dice.random() * PAUSE)

    changing = [change(asking, end, outcomes)] if control else []
    await asyncio.gather(*(client(number) for number in range(CLIENTS)), *changing)


async def change(asking: Asking, end: float, outcomes: Outcomes) -> None:
    """Other policies, off and on, and what is refused, while requests run."""
    dice = random.Random(asking.dice.random())
    turns = 0
    while (time.monotonic() < end or turns < 2) and outcomes.sum("lost") < MOST_LOST:
        policy = POLICIES[turns % len(POLICIES)]
        await outcomes.of("control: another policy", set_policy(asking.client, policy))
        await asyncio.sleep(dice.random() * PAUSE)
        if turns % 4 == 1:
            await outcomes.of("control: off", switch(asking.client, False))
            await asyncio.sleep(dice.random() * PAUSE)
            await outcomes.of("control: on", switch(asking.client, True))
        method, value, sentence = dice.choice(REFUSED)
        await outcomes.of("control: refused", refuse(asking.client, method, value, sentence))
        turns += 1


async def rpc(client: httpx.AsyncClient, method: str, *args: Any) -> Any:
    answer = await client.post("/collective_rpc", json={"method": method, "args": list(args)})
    if answer.status_code != 200:
        raise Wrong(f"{method}: status {answer.status_code}: {answer.text[:200]}")
    (found,) = answer.json()["results"]
    return found


async def set_policy(client: httpx.AsyncClient, policy: str) -> None:
    if (said := str(await rpc(client, "xshare_set", policy))) not in ("True", "False"):  # as vLLM's endpoint spells it
        raise Wrong(f"xshare_set {policy}: {said}")
    serves = (await rpc(client, "xshare_stats"))["policy"]
    if serves != str(Policy.parse(policy)):
        raise Wrong(f"xshare_set {policy}: it serves {serves}")


async def switch(client: httpx.AsyncClient, on: bool) -> None:
    if (said := str(await rpc(client, "xshare_switch", on))) not in ("True", "False"):
        raise Wrong(f"xshare_switch {on}: {said}")
    if (await rpc(client, "xshare_stats"))["on"] is not on:
        raise Wrong(f"xshare_switch {on}: it is not")


async def refuse(client: httpx.AsyncClient, method: str, value: Any, sentence: str) -> None:
    said = await rpc(client, method, value)
    if not isinstance(said, dict) or [*said] != ["error"] or not said["error"].startswith(sentence):
        raise Wrong(f"{method} {str(value)[:50]}: {str(said)[:200]}, expected an error")


# An engine that dies


async def outlive(url: str, prompt: str, kill: Callable[[], None], streams: int = 8, wholes: int = 4) -> list[str]:
    """Kill the engine under requests that would take long -> what each client has seen: an error, or a mistake."""
    started = asyncio.Semaphore(0)
    body = {"model": NAME, "prompt": prompt, "max_tokens": MAX_TOKENS - 2 * LONGEST, "ignore_eos": True}

    async with httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits(max_connections=None)) as client:
        asking = Asking(client, random.Random(0), [prompt])

        async def streamed() -> None:
            begun = False
            try:
                async for _ in asking.stream(body):
                    if not begun:
                        started.release()
                    begun = True
            finally:
                if not begun:  # whoever waits for it would wait for good
                    started.release()

        async def seen(answer: Any) -> str:
            try:
                async with asyncio.timeout(60):
                    await answer
            except Wrong:
                return "an error"
            except httpx.TransportError:
                return "a connection that was dropped"
            except TimeoutError:
                return "nothing for a minute"
            return "an answer as if it were whole"

        tasks = [asyncio.create_task(seen(streamed())) for _ in range(streams)]
        tasks += [asyncio.create_task(seen(asking.answer(body))) for _ in range(wholes)]
        for _ in range(streams):
            await started.acquire()
        kill()
        return list(await asyncio.gather(*tasks))
