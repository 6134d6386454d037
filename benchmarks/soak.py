"""Does a server stay right under everything that clients do to it?

    python benchmarks/soak.py [--minutes 10] [--json evidence/soak.json]

A real vLLM server of nano on the CPU, with XShare, and real clients over HTTP: requests that join, end, hang up in the
middle, are cancelled, are protected, or are refused; the policy changes all along, and /metrics is scraped. In the end
the engine is killed under load. Counted are requests that were lost or answered wrongly, metrics that do not add up,
tracebacks in the log, and how much memory each process has grown by after a warm-up. The exit status is 1 if anything
fails that must hold. `--without` serves the same load by vLLM alone: what it does there is not XShare's. Whatever
follows `--` goes to vLLM.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from lib.soak_checks import MOST_GROWTH, Scrapes, check, grown, growth, listed, steps_of, sums
from lib.soak_load import Outcomes, clients, outlive, switch
from lib.soak_requests import Asking, Counted, Wrong, kinds, native_answers
from lib.soak_server import Metrics, Server, read_metrics

from xshare import models
from xshare.cli.output import number_table, wide_console
from xshare.quality.task_files import built_in
from xshare.results import Results, Row

KEY: Row = {"policy": "balanced", "metrics": {"every": 4, "interval": 1.0}}
PROMPTS = 3  # of each kind of question
EVERY = 2.0  # seconds between two scrapes
LEAST_SECONDS = 300  # of load after which memory is judged: a server that has just begun still grows


@dataclass
class Seen:
    """What a campaign has seen."""

    outcomes: Outcomes = field(default_factory=Outcomes)  # of requests, by kind
    scrapes: Scrapes = field(default_factory=Scrapes)
    memory: list[Row] = field(default_factory=list)  # of each process, by time
    counted: Counted = field(default_factory=Counted)
    compared: int = 0  # prompts whose native answer is known


async def load(server: Server, seconds: float, seed: int, seen: Seen) -> None:
    """Everything that clients do, for so long."""
    with_xshare, limits = server.key is not None, httpx.Limits(max_connections=None)  # nobody waits for another
    prompts = [task.prompt for task in built_in(PROMPTS, seed)]
    async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client:
        asking = Asking(client, random.Random(seed), prompts, counted=seen.counted)
        if with_xshare:
            await switch(client, False)
        asking.native = await native_answers(asking)
        seen.compared = len(asking.native)
        if with_xshare:
            await switch(client, True)
        watching = asyncio.create_task(watch(server, client, seen))
        await clients(asking, kinds(with_xshare), seconds, seen.outcomes, with_xshare)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def watch(server: Server, client: httpx.AsyncClient, seen: Seen) -> None:
    """Scrape and weigh it, until this is cancelled."""
    begun = time.monotonic()
    while True:
        try:
            answer = await client.get("/metrics")
            seen.scrapes.add(read_metrics(answer.text), server.key is not None)
        except httpx.HTTPError as error:
            seen.scrapes.problems.append(f"/metrics: {type(error).__name__}")
        seen.memory.append({"seconds": round(time.monotonic() - begun, 1)} | server.memory())
        await asyncio.sleep(EVERY)


def judge(server: Server, before: Metrics, seen: Seen) -> list[Row]:
    """What must hold after the load, before the engine is killed."""
    outcomes, scrapes, counted = seen.outcomes, seen.scrapes, seen.counted
    requests = f"{outcomes.sum('sent')} requests and calls"
    refusing, others = server.tracebacks()
    checks = [
        check("no request is lost", not outcomes.sum("lost"), f"{outcomes.sum('lost')} of {requests}"),
        check("no answer is wrong", not outcomes.sum("wrong"), f"{outcomes.sum('wrong')} of {requests}"),
        check("protected answers were held against native's", counted.compared > 0,
              f"{counted.compared} answers to {seen.compared} prompts without a near tie"),
        check("counters never fall, gauges stay in range", not scrapes.problems and scrapes.count > 0,
              listed(scrapes.problems, f"{scrapes.count} scrapes")),
        check("no traceback in the log", not others,
              f"{others}, and {refusing} of bodies that vLLM refuses, which it logs so"),
    ]  # fmt: skip
    try:
        now = server.settled()
        checks.append(
            check("vLLM's counters agree with the clients'", not (wrong := sums(before, now, counted)),
                  listed(wrong, f"{counted.ended} answers of {counted.tokens} tokens, {counted.given_up} given up"))
        )  # fmt: skip
        return checks + (steps_checked(server, before, now) if server.key is not None else [])
    except httpx.HTTPError as error:
        return [*checks, check("the server serves to the end", False, f"{type(error).__name__}: {error}")]


def steps_checked(server: Server, before: Metrics, now: Metrics) -> list[Row]:
    ran, shown, stats = int(server.rpc("steps_seen")), steps_of(now) - steps_of(before), server.rpc("xshare_stats")
    mismatched = stats["steps_bypassed"].get("mismatch", 0)
    known = stats["steps_pruned"] + sum(stats["steps_bypassed"].values()) - mismatched - steps_of(before)
    acted = grown(before, now, "xshare:steps_pruned_total")
    return [
        check("steps acted on and left alone are all steps", ran == shown == known,
              f"{ran} ran, {shown} in /metrics, {known} by xshare_stats"),
        check("selection has acted", acted > 0, f"in {acted} of {ran} steps"),
        check("every layer had the rows of its step", mismatched == 0, f"{mismatched} had others"),
    ]  # fmt: skip


def killed(server: Server, prompt: str) -> list[Row]:
    """The engine's process ends under load: clients see an error, and the server ends too."""
    seen = asyncio.run(outlive(server.url, prompt, server.kill_engine))
    bad = [each for each in seen if each not in ("an error", "a connection that was dropped")]
    begun = time.monotonic()
    ended = server.ended(60)
    after = f"after {time.monotonic() - begun:.1f} s, status {server.process.poll()}" if ended else "it goes on"
    return [
        check("clients of a killed engine see an error", not bad, listed(bad, f"all {len(seen)}")),
        check("the server of a killed engine ends", ended, after),
    ]


def soak(model: Path, seconds: float, key: Row | None, more: Sequence[str], log: Path, seed: int = 0) -> Row:
    """-> `checks`, `requests`, `memory` with its `samples`, and `examples` of what went wrong."""
    server, seen = Server(model, log, key, more), Seen()
    try:
        server.wait_until_ready()
        before = server.settled()
        broken = broken_by(load(server, seconds, seed, seen))
        checks = judge(server, before, seen)
        memory = growth(seen.memory, seconds)
        if seconds >= LEAST_SECONDS and memory:
            checks.append(memory_checked(memory))
        if broken is not None:
            checks.append(check("the load goes to its end", False, broken))
        elif server.process.poll() is None:
            checks += killed(server, built_in(1, seed)[0].prompt)
    finally:
        server.stop()
    found: Row = {"checks": checks, "requests": [*seen.outcomes.rows.values()], "memory": memory}
    return found | {"samples": seen.memory, "examples": seen.outcomes.examples}


def broken_by(load: Coroutine[Any, Any, None]) -> str | None:
    """What has ended it, if anything has: clients go on after an error, those who prepare for them do not."""
    try:
        asyncio.run(load)
    except (Wrong, httpx.HTTPError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def memory_checked(memory: Sequence[Row]) -> Row:
    each = (f"{row['process']} {row['growth']:+.2%} of {row['bytes_warm'] / 2**20:.0f} MiB" for row in memory)
    most = max(row["growth"] for row in memory)
    return check(f"no process grows by {MOST_GROWTH:.0%} after its warm-up", most < MOST_GROWTH, ", ".join(each))


def main(
    more: Annotated[list[str] | None, typer.Argument(help="Options of vLLM's, after --.")] = None,
    minutes: Annotated[float, typer.Option(help="Of load.")] = 10.0,
    without: Annotated[bool, typer.Option("--without", help="vLLM alone, without the xshare key.")] = False,
    model: Annotated[Path | None, typer.Option(help="A folder; nano by default.")] = None,
    log: Annotated[Path | None, typer.Option(help="Where the server's log goes.")] = None,
    json: Annotated[Path | None, typer.Option(help="Where results go.")] = None,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    from vllm import __version__ as vllm

    about: Row = {"vllm": vllm, "model": "nano" if model is None else model.name, "minutes": minutes, "seed": seed}
    about |= {"key": None if without else KEY, "options": more or []}
    results = Results(json, None, about, lists=("requests", "memory", "samples"))
    log = log or Path(tempfile.mkdtemp(prefix="xshare-soak-"), "server.log")
    print(f"{minutes:g} minutes of load, and the start of a server; its log: {log}", flush=True)
    found = soak(model or models.folder("nano"), 60 * minutes, None if without else KEY, more or [], log, seed)
    results.rows[:] = found["checks"]
    for name, records in results.lists.items():
        records[:] = found[name]
    failed = [row["check"] for row in found["checks"] if not row["passed"]]
    verdict = f"fails: {'; '.join(failed)}" if failed else f"all {len(found['checks'])} checks hold"
    results.write(verdict=verdict)
    show(found)
    print(verdict)
    raise typer.Exit(bool(failed))


def show(found: Row) -> None:
    console = wide_console()
    table = number_table("requests and calls", "kind", "sent", "right", "lost", "wrong")
    for row in found["requests"]:
        table.add_row(row["kind"], *(str(row[name]) for name in ("sent", "right", "lost", "wrong")))
    console.print(table)
    for sentence in found["examples"]:
        console.print(f"  {sentence}", markup=False)
    for row in found["checks"]:
        console.print(f"{'holds' if row['passed'] else 'FAILS'}  {row['check']}: {row['detail']}", markup=False)


if __name__ == "__main__":
    typer.run(main)
