"""The paper's speed tables in vLLM, gpt-oss-120b shape: what it says, what is measured, what could at best be had.

    python benchmarks/fit_routing.py          # once: the regimes `fitted` and `carried`
    python benchmarks/paper_speed.py          # every piece; or some: paper_speed.py plain eagle3
    python benchmarks/paper_speed.py --summary

Two engines with the same random weights (`xshare_dummy`: this measures speed, not quality) stay loaded side by side:
unmodified vLLM (`native`: the plugin is not loaded), and one with selection, whose policy is changed live. They decode
in turns, so that a slow spell of the machine hits both. A decode is a fixed batch, timed over whole steps. Ratios are
of step times, native's over the policy's: medians of the pairs with bootstrap 95 % intervals. The control (`noop`) is
selection with a budget of N, bypasses off: it really runs, and keeps everything. With drafts acceptance is synthetic,
2.5 tokens a step, so ratios of steps are ratios of tokens; `token_ratio` is as it happened to come out.

A piece is one start of the two engines; its cells are regimes times batches, with so many layers. All routing regimes
are measured in one start, because routers, embedding and head are filled again where they are. Rows are written after
every cell, and cells that are there already are skipped, so it may be stopped and run again; `--again` measures them
once more. With all 36 layers an engine takes 62 GiB, so both fit on a card of 141 GB; fewer (`--layers`) on others.

  plain, fixed, eagle3   the paper's policies: without drafts; with drafts that cost nothing but run on the host; with a
                         head of EAGLE-3's shape, on vLLM's V2 runner (eagle3-v1: on V1, 0.26's default for this model)
  logit-sum              the rule of vLLM pull request 35551
  budgets                sets of exactly m experts, for many m: how straight the law is
  presence               the plugin there and not used

`predicted` is what `step = a + b * active experts` gives for the experts saved if selecting were free, with b from the
control and the other policies. `floor_ms` is the time to read the active experts at the card's own copy bandwidth.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from engine_pair import ACCEPTED, PROMPT, Engine
from fit_routing import EVIDENCE, fits
from shapes import expert_bytes, gpt_oss_120b
from speed_rows import LOGIT_SUM, NOOP, PAPER, UNUSED, Bytes, Counted, rows_of, spelled, totals

from xshare.errors import XShareError
from xshare.policy import Policy
from xshare.results import Results, Row, provenance

REGIMES = ("independent", "fitted", "carried")
CONTROLS = 3  # pairs of the control for one of a policy: it decides about one percent
WARM = 8  # steps after a change of policy
BESIDE = ["k0=1,m=24", "k0=0,m=24", "k0=1,m=0", "k0=2,m=0"]  # at other batches; the last two so that the law has points
BUDGETS = tuple(f"k0=0,m={m}" for m in range(8, 50, 2))
BEGAN = time.perf_counter()


@dataclass(frozen=True)
class Piece:
    name: str
    batches: tuple[int, ...]
    drafter: str = "none"
    drafts: int = 0
    method: str = "xshare"
    runner: str = "V1"  # vLLM 0.26's for gpt-oss. With V2, the default from 0.29 on, drafts do not wait for the host
    regimes: tuple[str, ...] = REGIMES
    measured: tuple[str, ...] = ()  # instead of the paper's policies

    def policies(self, batch: int) -> list[str]:
        """What the second engine is measured with; the first is the control, where there is one."""
        if self.method != "xshare":
            return [{"logit-sum": LOGIT_SUM, "unused": UNUSED}[self.method]]
        paper = PAPER.get((self.drafts, batch))
        return [NOOP, *(self.measured or paper or BESIDE)]

    def second(self, experts: int) -> Row:
        """How the second engine differs from unmodified vLLM."""
        if self.method == "logit-sum":
            return {"rule": "logit-sum", "budget": Policy.parse(LOGIT_SUM).batch_budget}
        control = {"warmup": 1, "batch_budget": experts, "gates": {"bypass": False}}
        return {"rule": "xshare", "xshare": None if self.method == "unused" else control}


PIECES = {
    piece.name: piece
    for piece in (
        Piece("plain", (16, 32, 8, 4)),
        Piece("fixed", (4,), "fixed", 3),
        Piece("eagle3", (4,), "eagle3", 3, runner="V2"),
        Piece("eagle3-v1", (4,), "eagle3", 3),
        Piece("logit-sum", (16, 32, 8, 4), method="logit-sum"),
        Piece("budgets", (16,), regimes=("independent",), measured=BUDGETS),
        Piece("presence", (16, 32), method="unused", regimes=("fitted",)),
    )
}
CELL = ("piece", "regime", "batch", "layers")


def say(text: str) -> None:
    print(f"[{time.perf_counter() - BEGAN:6.1f} s] {text}", flush=True)


class Kept(Results):
    """Rows, and for each cell a record of the run that measured it."""

    def __init__(self, path: Path, settings: Row) -> None:
        """A file that was measured with other `settings` is left alone, and refused."""
        self.settings = settings
        about = {"shape": "gpt-oss-120b", "weights": "xshare_dummy: speed, not quality", "seed": 0}
        super().__init__(path, settings, about, ("runs",))

    def done(self) -> set[tuple[Any, ...]]:
        return {tuple(run[name] for name in CELL) for run in self.lists["runs"]}

    def add(self, rows: Sequence[Row], run: Row) -> None:
        """In place of what is there of that cell; written at once."""
        self.put(rows, CELL)
        self.put([run], CELL, "runs")
        for records in (self.rows, self.lists["runs"]):
            records.sort(key=_place)
        self.write()


def _place(row: Row) -> tuple[int, ...]:
    piece = PIECES[row["piece"]]
    place = list(PIECES).index(piece.name), REGIMES.index(row["regime"]), piece.batches.index(row["batch"])
    return -row["layers"], *place


@dataclass
class Pair:
    """Unmodified vLLM and the engine that is held against it."""

    native: Engine
    second: Engine
    piece: Piece
    control: str
    regime: str  # whose weights both have

    def reach(self, regime: str, weights: Row) -> None:
        """Fill the routers of both again, if they have others."""
        if regime == self.regime:
            return
        say(f"{self.piece.name}: routing becomes {regime}, {weights}")
        filled = {engine.ask("weights", weights=weights) for engine in (self.native, self.second)}
        if len(filled) > 1:
            raise XShareError(f"the engines have filled {filled} routers, which should be as many in both")
        self.regime = regime

    def measure(self, batch: int, steps: int, repeats: int) -> tuple[dict[str, Any], dict[str, Counted]]:
        policies = self.piece.policies(batch)
        long = policies[0] if self.piece.method in ("xshare", "unused") else None  # which gets CONTROLS as many pairs
        pairs: dict[str, list[Any]] = {policy: [] for policy in policies}
        counted: dict[str, list[Row]] = {policy: [] for policy in policies}
        for engine in (self.native, self.second):
            engine.ask("decode", batch=batch, steps=2 * WARM, seed=0)
        for repeat in range(CONTROLS * repeats):
            order = policies if repeat % 2 == 0 else policies[::-1]
            for policy in order if repeat < repeats else [policy for policy in policies if policy == long]:
                if self.piece.method == "xshare":
                    self.second.ask("policy", policy=self.control if policy == NOOP else policy)
                self.second.ask("decode", batch=batch, steps=WARM, seed=1)
                two = (self.native, self.second) if repeat % 2 == 0 else (self.second, self.native)
                found = {engine: engine.ask("decode", batch=batch, steps=steps, seed=2 + repeat) for engine in two}
                pairs[policy].append((found[self.native], found[self.second]))
                if self.piece.method != "unused":
                    counted[policy].append(self.second.ask("counted", batch=batch))
        return pairs, {policy: Counted.of(each) for policy, each in counted.items() if each}


def decodes(pairs: dict[str, Any]) -> dict[str, list[list[float]]]:
    """Every pair as it came: ms a step over the whole decode and of its median step, of either engine."""
    return {
        policy: [
            [round(1000 * ms, 4) for each in two for ms in (each["seconds"] / each["steps"], each["middle"])]
            for two in all_pairs
        ]
        for policy, all_pairs in pairs.items()
    }


def run_piece(piece: Piece, layers: int, cells: list[tuple[str, int]], kept: Kept, steps: int, repeats: int) -> None:
    """Start the two engines and measure these (regime, batch), one after another."""
    tiny, regimes = kept.settings["tiny"], kept.settings["regimes"]
    shape = gpt_oss_120b(layers, tiny)
    first = cells[0][0]
    options: Row = {"tiny": tiny, "layers": layers, "drafter": piece.drafter, "drafts": piece.drafts}
    options["runner"] = piece.runner
    # A drafting head runs on one row a request after its first pass.
    rows_each = {1 + piece.drafts} | ({1} if piece.drafter == "eagle3" else set())
    options["sizes"] = sorted({batch * each for batch in piece.batches for each in rows_each})
    options["weights"] = regimes[first]
    say(f"{piece.name}: starting two engines of {layers} layers")
    with ExitStack() as stack:
        native = stack.enter_context(Engine("native", options | {"rule": None}))
        second = stack.enter_context(Engine("second", options | piece.second(shape["num_local_experts"])))
        about = [engine.answer() for engine in (native, second)][1]
        bandwidth = native.ask("bandwidth")
        say(f"{piece.name}: started, {about}" + (f", copies at {bandwidth / 1e9:.0f} GB/s" if bandwidth else ""))
        pair = Pair(native, second, piece, f"k0=1,m={shape['num_local_experts']}", first)
        moved = Bytes(layers * expert_bytes(shape), bandwidth)
        for regime, batch in cells:
            began = time.perf_counter()
            pair.reach(regime, regimes[regime])
            pairs, counted = pair.measure(batch, steps, repeats)
            cell: Row = {"piece": piece.name, "regime": regime, "batch": batch, "layers": layers}
            setting = cell | {"drafts": piece.drafts, "drafter": piece.drafter}
            plain = [row for row in kept.rows if row["piece"] == "plain"] if piece.method == "logit-sum" else []
            rows = rows_of(setting, pairs, counted, moved, plain)
            run = cell | about | regimes[regime] | {"steps": steps, "repeats": repeats, "prompt_tokens": PROMPT}
            run |= {"accepted": ACCEPTED if piece.drafts and not tiny else None}
            run |= {"copy_gb_s": bandwidth / 1e9 if bandwidth else None, "seconds": time.perf_counter() - began}
            run["decodes"] = decodes(pairs)
            stamp = provenance()
            kept.add(rows, run | {"command": " ".join(stamp["argv"]), "time": stamp["time"], "git": stamp["git"]})
            for row in rows:
                say(spelled(row))


def main(
    pieces: Annotated[list[str] | None, typer.Argument(help=f"{', '.join(PIECES)}; all by default.")] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Only cells of this batch; may be repeated.")] = None,
    regime: Annotated[list[str] | None, typer.Option(help="Only cells of this regime; may be repeated.")] = None,
    layers: Annotated[int | None, typer.Option(help="36 by default, which is all; fewer for a smaller card.")] = None,
    steps: Annotated[int, typer.Option(help="Steps of a timed decode.")] = 64,
    repeats: Annotated[int, typer.Option(help=f"Pairs of each policy; {CONTROLS} times as many of the control.")] = 5,
    json: Annotated[Path, typer.Option(help="The result file; other cells in it are kept.")] = (
        EVIDENCE / "paper_speed.json"
    ),
    again: Annotated[bool, typer.Option("--again", help="Measure cells that are there, too.")] = False,
    summary: Annotated[bool, typer.Option("--summary", help="Only show what is there.")] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="A small shape, for a machine without a GPU.")] = False,
) -> None:
    for name in pieces or []:
        if name not in PIECES:
            raise typer.BadParameter(f"{name!r} is no piece: there are {', '.join(PIECES)}")
    for name in regime or []:
        if name not in REGIMES:
            raise typer.BadParameter(f"{name!r} is no regime: there are {', '.join(REGIMES)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that the engines are stopped as well
    regimes: dict[str, Row] = {"independent": {"skew": 0.0, "correlation": 0.0}} | fits()
    layers = layers or (4 if tiny else 36)
    try:
        kept = Kept(json, {"tiny": tiny, "regimes": regimes})
        for name in [] if summary else pieces or PIECES:
            piece = PIECES[name]
            wanted = [
                (each, size)
                for each in piece.regimes
                for size in piece.batches
                if (not regime or each in regime) and (not batch or size in batch)
            ]
            cells = [cell for cell in wanted if again or (name, *cell, layers) not in kept.done()]
            say(f"{name}: {len(cells)} cells to measure of {len(wanted)} that are asked for")
            if cells:
                run_piece(piece, layers, cells, kept, steps, repeats)
    except XShareError as error:
        raise SystemExit(str(error)) from None
    for depth in dict.fromkeys(row["layers"] for row in kept.rows):
        rows = [row for row in kept.rows if row["layers"] == depth]
        print("\n".join(["", f"All that is there of {depth} layers:", *map(spelled, rows), *totals(rows)]))


if __name__ == "__main__":
    typer.run(main)
