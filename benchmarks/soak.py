"""Does a server stay right under everything that clients do to it?

    python benchmarks/soak.py [--minutes 10] [--json evidence/soak.json]

A real vLLM server of nano on the CPU, with XShare, and real clients over HTTP: requests that join, end, hang up in the
middle, are cancelled, are protected, or are refused; the policy changes all along, and /metrics is scraped. In the end
the engine is killed under load. Counted are requests that were lost or answered wrongly, metrics that do not add up,
tracebacks in the log, and how much each process's memory grows after a warm-up. The exit status is 1 if any check
fails. `--without` puts the same load on vLLM alone: what goes wrong there is not XShare's doing. Options after `--` go
to vLLM.
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
from lib.soak_checks import (
    MOST_GROWTH,
    Scrapes,
    check_row,
    counter_mismatches,
    growth,
    increase,
    problems_text,
    steps_of,
)
from lib.soak_load import Outcomes, kill_engine_under_load, run_clients, switch
from lib.soak_requests import Counted, Session, WrongAnswer, kinds, native_answers
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
class LoadRecord:
    """What a campaign has seen."""

    outcomes: Outcomes = field(default_factory=Outcomes)  # of requests, by kind
    scrapes: Scrapes = field(default_factory=Scrapes)
    memory: list[Row] = field(default_factory=list)  # of each process, by time
    counted: Counted = field(default_factory=Counted)
    compared: int = 0  # prompts whose native answer is known


async def load(server: Server, seconds: float, seed: int, record: LoadRecord) -> None:
    """Everything that clients do, for so long."""
    with_xshare, limits = server.key is not None, httpx.Limits(max_connections=None)  # nobody waits for another
    prompts = [task.prompt for task in built_in(PROMPTS, seed)]
    async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client:
        session = Session(client, random.Random(seed), prompts, counted=record.counted)
        if with_xshare:
            await switch(client, False)
        session.native = await native_answers(session)
        record.compared = len(session.native)
        if with_xshare:
            await switch(client, True)
        watching = asyncio.create_task(watch(server, client, record))
        await run_clients(session, kinds(with_xshare), seconds, record.outcomes, with_xshare)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def watch(server: Server, client: httpx.AsyncClient, record: LoadRecord) -> None:
    """Scrape /metrics and read the memory of the server's processes, until this is cancelled."""
    begun = time.monotonic()
    while True:
        try:
            answer = await client.get("/metrics")
            record.scrapes.add(read_metrics(answer.text), server.key is not None)
        except httpx.HTTPError as error:
            record.scrapes.problems.append(f"/metrics: {type(error).__name__}")
        record.memory.append({"seconds": round(time.monotonic() - begun, 1)} | server.memory())
        await asyncio.sleep(EVERY)


def load_checks(server: Server, before: Metrics, record: LoadRecord) -> list[Row]:
    """What must hold after the load, before the engine is killed."""
    outcomes, scrapes, counted = record.outcomes, record.scrapes, record.counted
    requests = f"{outcomes.sum('sent')} requests and calls"
    refusing, unexpected = server.tracebacks()
    checks = [
        check_row("no request is lost", not outcomes.sum("lost"), f"{outcomes.sum('lost')} of {requests}"),
        check_row("no answer is wrong", not outcomes.sum("wrong"), f"{outcomes.sum('wrong')} of {requests}"),
        check_row("protected answers were held against native's", counted.compared > 0,
              f"{counted.compared} answers to {record.compared} prompts without a near tie"),
        check_row("counters never fall, gauges stay in range", not scrapes.problems and scrapes.count > 0,
              problems_text(scrapes.problems, f"{scrapes.count} scrapes")),
        check_row("no traceback in the log", not unexpected,
              f"{unexpected}, and {refusing} of bodies that vLLM refuses, which it logs so"),
    ]  # fmt: skip
    try:
        now = server.settled()
        checks.append(
            check_row(
                "vLLM's counters agree with the clients'",
                not (wrong := counter_mismatches(before, now, counted)),
                problems_text(
                    wrong, f"{counted.ended} answers of {counted.tokens} tokens, {counted.given_up} given up"
                ),
            )
        )
        return checks + (step_checks(server, before, now) if server.key is not None else [])
    except httpx.HTTPError as error:
        return [*checks, check_row("the server serves to the end", False, f"{type(error).__name__}: {error}")]


def step_checks(server: Server, before: Metrics, now: Metrics) -> list[Row]:
    ran, by_metrics, stats = int(server.rpc("steps_seen")), steps_of(now) - steps_of(before), server.rpc("xshare_stats")
    mismatched = stats["steps_bypassed"].get("mismatch", 0)
    by_stats = stats["steps_pruned"] + sum(stats["steps_bypassed"].values()) - mismatched - steps_of(before)
    acted = increase(before, now, "xshare:steps_pruned_total")
    return [
        check_row("steps acted on and left alone are all steps", ran == by_metrics == by_stats,
              f"{ran} ran, {by_metrics} in /metrics, {by_stats} by xshare_stats"),
        check_row("selection has acted", acted > 0, f"in {acted} of {ran} steps"),
        check_row("every layer had the rows of its step", mismatched == 0, f"{mismatched} had others"),
    ]  # fmt: skip


def killed_engine_checks(server: Server, prompt: str) -> list[Row]:
    """The engine's process ends under load: clients see an error, and the server ends too."""
    engine = server.processes()["EngineCore"]  # before the load: on a busy machine the search outlasts the answers
    outcomes = asyncio.run(kill_engine_under_load(server.url, prompt, engine.kill))
    bad = [outcome for outcome in outcomes if outcome not in ("an error", "a connection that was dropped")]
    begun = time.monotonic()
    ended = server.ended(60)
    after = f"after {time.monotonic() - begun:.1f} s, status {server.process.poll()}" if ended else "it goes on"
    return [
        check_row("clients of a killed engine see an error", not bad, problems_text(bad, f"all {len(outcomes)}")),
        check_row("the server of a killed engine ends", ended, after),
    ]


def soak(model: Path, seconds: float, key: Row | None, options: Sequence[str], log: Path, seed: int = 0) -> Row:
    """-> `checks`, `requests`, `memory` with its `samples`, and `examples` of what went wrong."""
    server, record = Server(model, log, key, options), LoadRecord()
    try:
        server.wait_until_ready()
        before = server.settled()
        broken = load_error(load(server, seconds, seed, record))
        checks = load_checks(server, before, record)
        memory = growth(record.memory, seconds)
        if seconds >= LEAST_SECONDS and memory:
            checks.append(memory_check(memory))
        if broken is not None:
            checks.append(check_row("the load goes to its end", False, broken))
        elif server.process.poll() is None:
            checks += killed_engine_checks(server, built_in(1, seed)[0].prompt)
    finally:
        server.stop()
    campaign: Row = {"checks": checks, "requests": [*record.outcomes.rows.values()], "memory": memory}
    return campaign | {"samples": record.memory, "examples": record.outcomes.examples}


def load_error(load: Coroutine[Any, Any, None]) -> str | None:
    """The error that ended the load, or None. Clients continue after an error; what prepares for them does not."""
    try:
        asyncio.run(load)
    except (WrongAnswer, httpx.HTTPError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def memory_check(memory: Sequence[Row]) -> Row:
    growths = (f"{row['process']} {row['growth']:+.2%} of {row['bytes_warm'] / 2**20:.0f} MiB" for row in memory)
    most = max(row["growth"] for row in memory)
    return check_row(f"no process grows by {MOST_GROWTH:.0%} after its warm-up", most < MOST_GROWTH, ", ".join(growths))


def main(
    more: Annotated[list[str] | None, typer.Argument(help="Options of vLLM's, after --.")] = None,
    minutes: Annotated[float, typer.Option(help="Minutes of load.")] = 10.0,
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
    campaign = soak(model or models.folder("nano"), 60 * minutes, None if without else KEY, more or [], log, seed)
    results.rows[:] = campaign["checks"]
    for name, records in results.lists.items():
        records[:] = campaign[name]
    failed = [row["check"] for row in campaign["checks"] if not row["passed"]]
    verdict = f"fails: {'; '.join(failed)}" if failed else f"all {len(campaign['checks'])} checks hold"
    results.write(verdict=verdict)
    show(campaign)
    print(verdict)
    raise typer.Exit(bool(failed))


def show(campaign: Row) -> None:
    console = wide_console()
    table = number_table("requests and calls", "kind", "sent", "right", "lost", "wrong")
    for row in campaign["requests"]:
        table.add_row(row["kind"], *(str(row[name]) for name in ("sent", "right", "lost", "wrong")))
    console.print(table)
    for sentence in campaign["examples"]:
        console.print(f"  {sentence}", markup=False)
    for row in campaign["checks"]:
        console.print(f"{'holds' if row['passed'] else 'FAILS'}  {row['check']}: {row['detail']}", markup=False)


if __name__ == "__main__":
    typer.run(main)
