"""Load on a server: clients that come and go, live control at the same time, and clients of a killed engine."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import httpx

from lib.soak_requests import LONGEST, Kind, Session, WrongAnswer
from lib.soak_server import MAX_TOKENS, NAME
from xshare.policy import Policy
from xshare.results import Row

CLIENTS = 24  # more than a step has room for: some wait
PAUSE = 2.0  # seconds at most between two changes of the policy, and between two requests of a client
MOST_LOST = 100  # lost requests after which the server counts as dead
EXAMPLES = 10  # sentences about what went wrong, at most
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
    """Per kind of request: how many were sent, answered rightly, lost, and answered wrongly."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.examples: list[str] = []

    async def of(self, kind: str, request: Any) -> None:
        """Wait for a request of this kind, and count its outcome."""
        row = self.rows.setdefault(kind, {"kind": kind, "sent": 0, "right": 0, "lost": 0, "wrong": 0})
        row["sent"] += 1
        try:
            await request
        except WrongAnswer as error:
            self._not_right(row, "wrong", str(error))
        except (httpx.HTTPError, KeyError, ValueError, TypeError) as error:
            # No answer, or one whose form no answer has.
            name = "lost" if isinstance(error, httpx.HTTPError) else "wrong"
            self._not_right(row, name, f"{type(error).__name__}: {error}")
        else:
            row["right"] += 1

    def _not_right(self, row: Row, outcome: str, sentence: str) -> None:
        row[outcome] += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"{row['kind']}, {outcome}: {sentence[:300]}")

    def sum(self, column: str) -> int:
        return sum(row[column] for row in self.rows.values())


async def run_clients(
    session: Session, kinds: dict[str, tuple[Kind, float]], seconds: float, outcomes: Outcomes, control: bool
) -> None:
    """Run CLIENTS clients for `seconds`; with `control`, another one changes the policy meanwhile."""
    end = time.monotonic() + seconds
    names, weights = [*kinds], [weight for _, weight in kinds.values()]

    async def client(number: int) -> None:
        await asyncio.sleep(number * min(0.2, seconds / CLIENTS / 2))
        for name in names[number::CLIENTS]:  # every kind once, however short the campaign is
            await outcomes.of(name, kinds[name][0](session))
        while time.monotonic() < end and outcomes.sum("lost") < MOST_LOST:
            (name,) = session.dice.choices(names, weights)
            await outcomes.of(name, kinds[name][0](session))
            if session.dice.random() < 0.1:
                await asyncio.sleep(session.dice.random() * PAUSE)

    changing = [change_policies(session, end, outcomes)] if control else []
    await asyncio.gather(*(client(number) for number in range(CLIENTS)), *changing)


async def change_policies(session: Session, end: float, outcomes: Outcomes) -> None:
    """Set policies, switch off and on, and send what must be refused, while requests run."""
    dice = random.Random(session.dice.random())
    turns = 0
    while (time.monotonic() < end or turns < 2) and outcomes.sum("lost") < MOST_LOST:
        policy = POLICIES[turns % len(POLICIES)]
        await outcomes.of("control: another policy", set_policy(session.client, policy))
        await asyncio.sleep(dice.random() * PAUSE)
        if turns % 4 == 1:
            await outcomes.of("control: off", switch(session.client, False))
            await asyncio.sleep(dice.random() * PAUSE)
            await outcomes.of("control: on", switch(session.client, True))
        method, value, sentence = dice.choice(REFUSED)
        await outcomes.of("control: refused", refuse(session.client, method, value, sentence))
        turns += 1


async def rpc(client: httpx.AsyncClient, method: str, *args: Any) -> Any:
    answer = await client.post("/collective_rpc", json={"method": method, "args": list(args)})
    if answer.status_code != 200:
        raise WrongAnswer(f"{method}: status {answer.status_code}: {answer.text[:200]}")
    (result,) = answer.json()["results"]
    return result


async def set_policy(client: httpx.AsyncClient, policy: str) -> None:
    if (answer := str(await rpc(client, "xshare_set", policy))) not in (
        "True",
        "False",
    ):  # as vLLM's endpoint spells it
        raise WrongAnswer(f"xshare_set {policy}: {answer}")
    serves = (await rpc(client, "xshare_stats"))["policy"]
    if serves != str(Policy.parse(policy)):
        raise WrongAnswer(f"xshare_set {policy}: it serves {serves}")


async def switch(client: httpx.AsyncClient, on: bool) -> None:
    if (answer := str(await rpc(client, "xshare_switch", on))) not in ("True", "False"):
        raise WrongAnswer(f"xshare_switch {on}: {answer}")
    if (await rpc(client, "xshare_stats"))["on"] is not on:
        raise WrongAnswer(f"xshare_switch {on}: it is not")


async def refuse(client: httpx.AsyncClient, method: str, value: Any, sentence: str) -> None:
    answer = await rpc(client, method, value)
    if not isinstance(answer, dict) or [*answer] != ["error"] or not answer["error"].startswith(sentence):
        raise WrongAnswer(f"{method} {str(value)[:50]}: {str(answer)[:200]}, expected an error")


# An engine that dies


async def kill_engine_under_load(
    url: str, prompt: str, kill: Callable[[], None], streams: int = 8, wholes: int = 4
) -> list[str]:
    """Kill the engine while long requests run -> what each client saw: an error, or what it saw instead."""
    started = asyncio.Semaphore(0)
    body = {"model": NAME, "prompt": prompt, "max_tokens": MAX_TOKENS - 2 * LONGEST, "ignore_eos": True}

    async with httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits(max_connections=None)) as client:
        session = Session(client, random.Random(0), [prompt])

        async def streamed() -> None:
            begun = False
            try:
                async for _ in session.stream(body):
                    if not begun:
                        started.release()
                    begun = True
            finally:
                if not begun:  # or else the wait for all streams below never ends
                    started.release()

        async def seen(answer: Any) -> str:
            try:
                async with asyncio.timeout(60):
                    await answer
            except WrongAnswer:
                return "an error"
            except httpx.TransportError:
                return "a connection that was dropped"
            except TimeoutError:
                return "nothing for a minute"
            return "an answer as if it were whole"

        tasks = [asyncio.create_task(seen(streamed())) for _ in range(streams)]
        tasks += [asyncio.create_task(seen(session.answer(body))) for _ in range(wholes)]
        for _ in range(streams):
            await started.acquire()
        kill()
        return list(await asyncio.gather(*tasks))
