"""The paper's speed tables in vLLM, in gpt-oss-120b's shape: its numbers, measured ones, and the best possible.

    python benchmarks/fit_routing.py          # once: the regimes `fitted` and `carried`
    python benchmarks/paper_speed.py          # every piece; or some: paper_speed.py plain eagle3
    python benchmarks/paper_speed.py --summary

Two engines with the same random weights (`xshare_dummy`: this measures speed, not quality) stay loaded side by side:
unmodified vLLM (`native`: the plugin is not loaded), and one with selection, whose policy is changed live. They decode
in turns, so that a slow spell of the machine hits both. A decode is a fixed batch, timed over whole steps. A ratio is
native's step time over the policy's: the median of the pairs with a bootstrap 95 % interval, or the range of fewer than
six pairs. The control (`noop`) is selection with a budget of N and bypasses off: it runs, and keeps everything. With
drafts, acceptance is synthetic, 2.5 tokens per step, so ratios of steps are ratios of tokens; `token_ratio` is the
ratio of the tokens that were really decoded.

`--shape qwen3-30b-a3b --json FILE` measures the piece `presets` in that shape, whose experts vLLM computes on another
path.

The cells of a piece are regimes times batches, with so many layers. Pieces with the same engines share one start of the
two. All routing regimes are measured in one start: routers, embedding and head are refilled in place. Rows are written
after every cell and measured cells are skipped, so a run may be stopped and repeated; `--again` measures them once
more. With all 36 layers an engine takes 62 GiB, so both fit on a card of 141 GB; on smaller cards use fewer
(`--layers`).

  plain, fixed, eagle3   the paper's policies with score=full: without drafts; with drafts that cost nothing but run on
                         the host; with a head of EAGLE-3's shape, on vLLM's V2 runner (eagle3-v1: on V1, 0.26's default
                         for this model)
  logit-sum              the rule of vLLM pull request 35551
  budgets                sets of exactly m experts, for many m: how straight the law is
  presence               the plugin loaded and not used; presence-eagle3: with drafts
  presets                the recommended presets; presets-fixed, presets-eagle3: with drafts
  contexts               the same with prompts of 1024 and 8192 tokens, as far as their keys and values fit
  topk, topk-eagle3      the paper's policies by the other reading of its score, score=topk: without and with drafts

Pieces from `presets` on have as many pairs of the control as of every policy, and may be measured in several starts of
the engines (`--start 2`): starts differ more than pairs of one start. `pooled` in the file has the pairs of all starts.
Their rows say in how many steps selection acted, of those in which it should act: a control in which it did not act is
no control. Long prompts are prefilled before the clock starts; their requests continue from pair to pair until they
have grown by a quarter.

`predicted` is the speedup by `step = a + b * active experts` if selection cost nothing, with b from the control and the
other policies. `floor_ms` is the time to read the active experts at the card's own copy bandwidth.
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
from lib.engine_process import ACCEPTED, PROMPT, Engine
from lib.model_shapes import SHAPES, Config, cache_bytes, expert_bytes, experts_of, gpt_oss_120b
from lib.paths import EVIDENCE
from lib.routing_fits import fits
from lib.speed_rows import (
    FULL,
    LOGIT_SUM,
    NOOP,
    PAPER,
    STAMPS,
    UNUSED,
    Bytes,
    Counted,
    pooled,
    row_text,
    rows_of,
    totals,
    with_stamps,
)

from xshare.engines.serving.compiled import start_fields
from xshare.errors import XShareError
from xshare.policy import RECOMMENDED, Policy
from xshare.results import Results, Row, provenance

REGIMES = ("independent", "fitted", "carried")
NEXT = ("carried", "independent", "fitted")  # in order of importance
CONTROLS = 3  # pairs of the control per pair of a policy: its answer is a matter of one percent
REPEATS = 5
WARM = 4  # steps after a change of policy
BESIDE = ["k0=1,m=24", "k0=0,m=24", "k0=1,m=0", "k0=2,m=0"]  # at other batches; the last two so that the law has points
BUDGETS = tuple(f"k0=0,m={m}{FULL}" for m in range(8, 50, 2))
PRESETS = tuple(str(Policy.parse(name)) for name in RECOMMENDED)
GIB = 1 << 30
CACHES = 8 * GIB  # what two engines of all LAYERS leave on a card of 141 GB, for the caches of both
SHAPE, LAYERS = "gpt-oss-120b", 36
CHUNK = 2048  # tokens of long prompts that a step reads
GROWTH = 4  # long prompts are read again when 1 / GROWTH of their length has been decoded
BEGAN = time.perf_counter()

Cell = tuple[str, int, int]  # regime, batch, tokens of a prompt
Task = tuple["Piece", Cell, int]  # a cell of a piece, and the pairs that each policy gets


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
    only: tuple[str, ...] = REGIMES  # regimes of the policies; in the others there is the control alone
    pairs: int = 0  # of the control as of every policy, in one of several starts; 0: as --repeats says, in one start
    prompts: tuple[int, ...] = (PROMPT,)

    def cells(self) -> list[Cell]:
        """In the order in which they are measured."""
        return [(regime, size, prompt) for regime in self.regimes for prompt in self.prompts for size in self.batches]

    def policies(self, batch: int, regime: str) -> list[str]:
        """What the second engine is measured with; the first is the control, where there is one."""
        if self.method != "xshare":
            return [{"logit-sum": LOGIT_SUM, "unused": UNUSED}[self.method]]
        paper = [f"{name}{FULL}" for name in PAPER.get((self.drafts, batch), BESIDE)]
        return [NOOP, *(self.measured or paper)] if regime in self.only else [NOOP]

    def engines(self) -> tuple[Any, ...]:
        """What two pieces must have in common to share a start of the engines. Their kernels too: one that was started
        for other policies refuses what it has no code for."""
        return self.drafter, self.drafts, self.runner, repr(self.second(experts=0))  # of experts all have as many

    def second(self, experts: int) -> Row:
        """How the second engine differs from unmodified vLLM."""
        if self.method == "logit-sum":
            return {"rule": "logit-sum", "budget": Policy.parse(LOGIT_SUM).batch_budget}
        if self.method == "unused":
            return {"rule": "xshare", "xshare": None}
        policies = {name for batch in self.batches for name in self.policies(batch, self.only[0]) if name != NOOP}
        # The control runs the kernel that a server with these policies has.
        start = start_fields([Policy.parse(name) for name in sorted(policies)])
        return {"rule": "xshare", "xshare": start | {"batch_budget": experts, "gates": {"bypass": False}}}


def presets(name: str, batches: tuple[int, ...], drafter: str = "none", drafts: int = 0, runner: str = "V1") -> Piece:
    """A piece of the presets, on the routing most like a model's; the control in all regimes."""
    settings: Row = {"regimes": NEXT, "measured": PRESETS, "only": NEXT[:1], "pairs": 8}
    return Piece(name, batches, drafter, drafts, runner=runner, **settings)


def topk(name: str, batch: int, drafter: str = "none", drafts: int = 0, runner: str = "V1") -> Piece:
    """The paper's policies as its text defines the score, which is the default of a policy that is typed."""
    measured = tuple(PAPER[drafts, batch])
    return Piece(name, (batch,), drafter, drafts, runner=runner, regimes=NEXT, measured=measured, pairs=8)


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
        Piece("presence-eagle3", (16, 4), "eagle3", 3, "unused", "V2", regimes=("fitted",)),
        presets("presets", (16, 32, 8, 4)),
        presets("presets-fixed", (16, 4), "fixed", 3),
        presets("presets-eagle3", (16, 4), "eagle3", 3, runner="V2"),
        Piece("contexts", (16, 4, 64), regimes=("carried",), measured=PRESETS, pairs=8, prompts=(1024, 8192)),
        topk("topk", 16),
        topk("topk-eagle3", 4, "eagle3", 3, runner="V2"),
    )
}


def cell_of(record: Row) -> tuple[Any, ...]:
    """What a row or a run is known by. Older records have one start, and older rows short prompts."""
    prompt_and_start = record.get("prompt_tokens", PROMPT), record.get("start", 1)
    return *(record[name] for name in ("piece", "regime", "batch", "layers")), *prompt_and_start


def shape_of(settings: Row) -> str:
    """Settings name a shape only if it is another one: older files have none."""
    name: str = settings.get("shape", SHAPE)
    return name


def say(text: str) -> None:
    print(f"[{time.perf_counter() - BEGAN:6.1f} s] {text}", flush=True)


class SpeedResults(Results):
    """Rows, and for each cell a record of the run that measured it."""

    def __init__(self, path: Path, settings: Row) -> None:
        """A file that was measured with other `settings` is refused."""
        self.settings = settings
        about = {"shape": shape_of(settings), "weights": "xshare_dummy: speed, not quality", "seed": 0}
        super().__init__(path, settings, about, ("runs", "pooled"))

    def done(self) -> set[tuple[Any, ...]]:
        return set(map(cell_of, self.lists["runs"]))

    def add(self, rows: Sequence[Row], run: Row) -> None:
        """Replace the records of that cell, and write the file."""
        for records, new in ((self.rows, rows), (self.lists["runs"], [run])):
            records[:] = [old for old in records if cell_of(old) != cell_of(run)]
            records += new
            records.sort(key=_place)
        started = [row for row in self.rows if "start" in row]
        self.lists["pooled"] = pooled(started, [one_run for one_run in self.lists["runs"] if "start" in one_run])
        self.write()

    def _unstamped(self, name: str, earlier: Row) -> list[Row]:
        for record in earlier.get(name, []):
            record.pop(STAMPS, None)
        return super()._unstamped(name, earlier)

    def _stamped(self, name: str, records: Sequence[Row]) -> list[Row]:
        """A pooled row names the runs of all its pairs in `stamps`, and in `stamp` the one that pooled them."""
        stamped = super()._stamped(name, records)
        if name != "pooled":
            return stamped
        started = [one_run for one_run in self._stamped("runs", self.lists["runs"]) if "start" in one_run]
        return with_stamps(stamped, started)


def _place(row: Row) -> tuple[int, ...]:
    name, regime, batch, layers, prompt, start = cell_of(row)
    piece = PIECES[name]
    place = list(PIECES).index(name), REGIMES.index(regime), piece.prompts.index(prompt), piece.batches.index(batch)
    return -layers, *place, start


@dataclass
class Pair:
    """Unmodified vLLM, and the engine that is compared with it."""

    native: Engine
    second: Engine
    control: str
    regime: str  # whose weights both have

    def reach(self, regime: str, weights: Row) -> None:
        """Fill the routers of both again, if they have others."""
        if regime == self.regime:
            return
        say(f"routing becomes {regime}, {weights}")
        filled = {engine.ask("weights", weights=weights) for engine in (self.native, self.second)}
        if len(filled) > 1:
            raise XShareError(f"the engines have filled {filled} routers, which should be as many in both")
        self.regime = regime

    def measure(
        self, piece: Piece, cell: Cell, steps: int, repeats: int, layers: int, tiny: bool
    ) -> tuple[dict[str, Any], dict[str, Counted]]:
        regime, batch, prompt = cell
        policies = piece.policies(batch, regime)
        # The control's answer is a matter of half a percent, so it gets two pairs per round.
        twice = policies[:1] if piece.pairs and prompt == PROMPT else []
        rounds = repeats if piece.pairs or piece.method == "logit-sum" else CONTROLS * repeats
        pairs: dict[str, list[Any]] = {policy: [] for policy in policies}
        counted: dict[str, list[Row]] = {policy: [] for policy in policies}
        request: Row = {"batch": batch}
        last = rounds  # before requests are replaced by others
        if prompt == PROMPT:
            for engine in (self.native, self.second):
                engine.ask("decode", **request, steps=2 * WARM, seed=0)
        else:
            long = Long.of(cell, len(policies), steps, repeats, layers, tiny)
            request, last = request | {"prompt": prompt, "most": long.decoded}, long.rounds
        for repeat in range(rounds):
            order = policies if repeat % 2 == 0 else policies[::-1]
            seed = 2 + (repeat if prompt == PROMPT else repeat // last)
            order = order if repeat < repeats else policies[:1]
            for policy in [*order, *twice]:
                if piece.method == "xshare":
                    self.second.ask("policy", policy=self.control if policy == NOOP else policy)
                engines = (self.native, self.second) if repeat % 2 == 0 else (self.second, self.native)
                decoded = {
                    engine: engine.ask("decode", **request, steps=steps, warm=WARM, seed=seed) for engine in engines
                }
                pairs[policy].append((decoded[self.native], decoded[self.second]))
                if piece.method != "unused":
                    counted[policy].append(self.second.ask("counted", batch=batch))
        return pairs, {policy: Counted.of(counts) for policy, counts in counted.items() if counts}


@dataclass(frozen=True)
class Long:
    """A cell of long prompts: how often they are read, and what their keys and values take."""

    rounds: int  # of all policies before they are read again
    decoded: int  # tokens of a request by then
    bytes: int

    @classmethod
    def of(cls, cell: Cell, policies: int, steps: int, repeats: int, layers: int, tiny: bool) -> Long:
        _, batch, prompt = cell
        per_round = policies * (1 + WARM + steps)
        rounds = min(repeats, max(1, prompt // GROWTH // per_round))
        decoded = rounds * per_round + -(-batch * prompt // CHUNK) + 8  # the first go on while the last are read
        bytes_each = cache_bytes(gpt_oss_120b(layers, tiny), prompt + decoded, width=4 if tiny else 2)
        return cls(
            rounds, decoded, int(1.1 * batch * bytes_each) + GIB // 8
        )  # and what is being read, and whole blocks


def room(shape: Config, tiny: bool) -> int:
    """Bytes for the keys and values of one of two engines."""
    if tiny:
        return GIB // 4
    freed = (LAYERS - shape["num_hidden_layers"]) * experts_of(shape) * expert_bytes(shape)
    return int(CACHES / 2 + freed)


def decodes(pairs: dict[str, Any]) -> dict[str, list[list[float]]]:
    """Every pair by policy: ms per step of the whole decode and of its median step, native's and the policy's."""
    return {
        policy: [
            [round(1000 * ms, 4) for decode in pair for ms in (decode["seconds"] / decode["steps"], decode["middle"])]
            for pair in all_pairs
        ]
        for policy, all_pairs in pairs.items()
    }


def start_options(tasks: list[Task], settings: Row, layers: int, steps: int) -> Row:
    """Options of both engines, so that all these cells can be measured."""
    piece, tiny = tasks[0][0], settings["tiny"]
    options: Row = {"tiny": tiny, "layers": layers, "drafter": piece.drafter, "drafts": piece.drafts}
    options |= {"runner": piece.runner, "shape": shape_of(settings)}
    # A drafting head runs on one row a request after its first pass.
    rows_each = {1 + piece.drafts} | ({1} if piece.drafter == "eagle3" else set())
    options["sizes"] = sorted({batch * rows for piece, *_ in tasks for batch in piece.batches for rows in rows_each})
    options["weights"] = settings["regimes"][tasks[0][1][0]]
    long = [
        (cell[2], Long.of(cell, len(piece.policies(cell[1], cell[0])), steps, pairs, layers, tiny))
        for piece, cell, pairs in tasks
        if cell[2] != PROMPT
    ]
    if long:
        options["length"] = max(prompt + reading.decoded for prompt, reading in long)
        options |= {"chunk": CHUNK, "cache": max(reading.bytes for _, reading in long)}
    return options


def run_together(tasks: list[Task], layers: int, results: SpeedResults, steps: int, start: int) -> None:
    """Start the two engines and measure these cells, one after another."""
    tiny, regimes = results.settings["tiny"], results.settings["regimes"]
    shape = SHAPES[shape_of(results.settings)](layers, tiny)
    experts = experts_of(shape)
    options = start_options(tasks, results.settings, layers, steps)
    names = " and ".join(dict.fromkeys(piece.name for piece, *_ in tasks))
    say(f"{names}: starting two engines of {layers} layers")
    with ExitStack() as stack:
        native = stack.enter_context(Engine("native", options | {"rule": None}))
        second = stack.enter_context(Engine("second", options | tasks[0][0].second(experts)))
        about = [engine.answer() for engine in (native, second)][1]
        bandwidth = native.ask("bandwidth")
        say(f"{names}: started, {about}" + (f", copies at {bandwidth / 1e9:.0f} GB/s" if bandwidth else ""))
        pair = Pair(native, second, f"k0=1,m={experts}", tasks[0][1][0])
        moved = Bytes(layers * expert_bytes(shape), bandwidth)
        for piece, where, repeats in tasks:
            regime, batch, prompt = where
            began = time.perf_counter()
            pair.reach(regime, regimes[regime])
            pairs, counted = pair.measure(piece, where, steps, repeats, layers, tiny)
            cell: Row = {"piece": piece.name, "regime": regime, "batch": batch, "layers": layers}
            cell |= {"start": start} if piece.pairs else {}
            setting = cell | {"drafts": piece.drafts, "drafter": piece.drafter}
            setting |= {"prompt_tokens": prompt} if prompt != PROMPT else {}
            plain = [row for row in results.rows if row["piece"] == "plain"] if piece.method == "logit-sum" else []
            rows = rows_of(setting, pairs, counted, moved, plain)
            if piece.pairs:
                rows = [row | counted.get(row["policy"], Counted()).steps() for row in rows]
            run = cell | about | regimes[regime] | {"steps": steps, "repeats": repeats, "prompt_tokens": prompt}
            run |= {"accepted": ACCEPTED if piece.drafts and not tiny else None}
            run |= {"copy_gb_s": bandwidth / 1e9 if bandwidth else None, "seconds": time.perf_counter() - began}
            run["decodes"] = decodes(pairs)
            stamp = provenance()
            results.add(rows, run | {"command": " ".join(stamp["argv"]), "time": stamp["time"], "git": stamp["git"]})
            for row in rows:
                say(row_text(row))


def fitting(piece: Piece, cells: list[Cell], steps: int, repeats: int, layers: int, tiny: bool) -> list[Cell]:
    """The cells whose keys and values fit beside two engines; the others are named on the terminal."""
    fitting_cells, most = [], room(gpt_oss_120b(layers, tiny), tiny)
    for cell in cells:
        regime, batch, prompt = cell
        policies = len(piece.policies(batch, regime))
        need = Long.of(cell, policies, steps, repeats, layers, tiny).bytes
        if prompt == PROMPT or need <= most:
            fitting_cells.append(cell)
        else:
            text = (
                f"{piece.name}: left out, {batch} prompts of {prompt} tokens: keys and values of {need / GIB:.1f} GiB"
            )
            say(f"{text}, and with {layers} layers there is room for {most / GIB:.1f}; fewer (--layers) leave more")
    return fitting_cells


def main(
    pieces: Annotated[list[str] | None, typer.Argument(help=f"{', '.join(PIECES)}; all by default.")] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Only cells of this batch; may be repeated.")] = None,
    regime: Annotated[list[str] | None, typer.Option(help="Only cells of this regime; may be repeated.")] = None,
    layers: Annotated[int | None, typer.Option(help="All by default; fewer for a smaller card.")] = None,
    shape: Annotated[str, typer.Option(help=f"{', '.join(SHAPES)}; another one needs a file of its own.")] = SHAPE,
    steps: Annotated[int, typer.Option(help="Steps of a timed decode.")] = 64,
    repeats: Annotated[
        int | None,
        typer.Option(help=f"Pairs of each policy; by default {REPEATS}, or as many as the piece asks for."),
    ] = None,
    prompt: Annotated[list[int] | None, typer.Option(help="Only cells with prompts of so many tokens.")] = None,
    start: Annotated[int, typer.Option(min=1, help="Which start of the engines this is, of `presets` and on.")] = 1,
    json: Annotated[Path, typer.Option(help="The result file; other cells in it are kept.")] = (
        EVIDENCE / "paper_speed.json"
    ),
    again: Annotated[bool, typer.Option("--again", help="Measure cells that are in the file, too.")] = False,
    summary: Annotated[bool, typer.Option("--summary", help="Only show the file's rows.")] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="A small shape, for a machine without a GPU.")] = False,
) -> None:
    for name in pieces or []:
        if name not in PIECES:
            raise typer.BadParameter(f"{name!r} is no piece: there are {', '.join(PIECES)}")
    for name in regime or []:
        if name not in REGIMES:
            raise typer.BadParameter(f"{name!r} is no regime: there are {', '.join(REGIMES)}")
    if shape not in SHAPES:
        raise typer.BadParameter(f"{shape!r} is no shape: there are {', '.join(SHAPES)}")
    if shape != SHAPE and (not pieces or set(pieces) - {"presets"}):
        raise typer.BadParameter(f"{shape} is measured with the piece `presets` alone")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that the engines are stopped as well
    regimes: dict[str, Row] = {"independent": {"skew": 0.0, "correlation": 0.0}} | fits()
    layers = layers or (4 if tiny else SHAPES[shape]()["num_hidden_layers"])
    try:
        other = {} if shape == SHAPE else {"shape": shape}
        results = SpeedResults(json, {"tiny": tiny, "regimes": regimes} | other)
        together: dict[tuple[Any, ...], list[Task]] = {}
        for name in [] if summary else pieces or PIECES:
            piece = PIECES[name]
            selected = [
                (at, size, tokens)
                for at, size, tokens in piece.cells()
                if (not regime or at in regime) and (not batch or size in batch) and (not prompt or tokens in prompt)
            ]
            start_number, done = start if piece.pairs else 1, results.done()
            cells = [(at, n, p) for at, n, p in selected if again or (name, at, n, layers, p, start_number) not in done]
            say(f"{name}: {len(cells)} cells to measure of {len(selected)} that are asked for")
            pairs = repeats or piece.pairs or REPEATS
            cells = fitting(piece, cells, steps, pairs, layers, tiny)
            together.setdefault(piece.engines(), []).extend((piece, cell, pairs) for cell in cells)
        for tasks in filter(None, together.values()):
            run_together(tasks, layers, results, steps, start)
    except XShareError as error:
        raise SystemExit(str(error)) from None
    every = [row for row in results.rows if "start" not in row] + results.lists["pooled"]
    for depth in dict.fromkeys(row["layers"] for row in every):
        rows = [row for row in every if row["layers"] == depth]
        print("\n".join(["", f"All that is there of {depth} layers:", *map(row_text, rows), *totals(rows)]))


if __name__ == "__main__":
    typer.run(main)
