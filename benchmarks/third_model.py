"""What do policies do to a model that learnt language (smol, recipes/smol), and is it a healthy mixture?

    recipes/smol/measure.sh CORPUS PACKAGE OUT                                    makes the model, and runs this
    python benchmarks/third_model.py OUT/smol OUT/texts.jsonl --questions OUT/smol.jsonl \\
        --beside dense=OUT/dense --beside dense-trained=OUT/smol-dense --beside start=OUT/start \\
        --jobs 6 --engine-args '{"device": "cuda", "dtype": "bfloat16"}'

Lists of the result file:

  rows         columns of frontier.json and a few more. `set: texts`: held-out texts are teacher-forced, 16 and 32 at a
               time, of several languages (mixed) or of one: `kl` of the next token from native's, `perplexity` of the
               text under the policy and `perplexity_native`, of all and by language, and the ratio of the two of all,
               with a bootstrap 95 % interval over texts. The model also continues each text's beginning freely, for
               --free tokens: `agreement` and `diverged` compare that. `set: questions`: answers as in frontier.json, KL
               and perplexities over native's answers
  calibration  rivals, and the knob at which they load as many experts as a reference
  perplexity   the same texts under the mixture and under the models beside it, routed natively, with an interval, too
  load, overlap, choice   of the mixture's routers, from a trace of what it says after the texts' beginnings; `choice`
               of other models' traces, too

Native and a control that must give native's tokens come first, then presets, the paper's policies by both readings of
its score, what routers do, and rivals. Every cell is written when it is done; the same command continues.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from lib import answer_options as take
from lib.answer_bench import Bench, Job, Setting, threads_each, workers_of
from lib.cell_results import CellResults, weights_hash
from lib.cells import CONTROL, KEY, Cell, CellRunner, RivalKnobs, tasks_of
from lib.command import run, say_results
from lib.expert_choice import choice_rows
from lib.paper_policies import no_op, paper_name, policy, rivals
from torch.nn.utils.rnn import pad_sequence

from xshare.cli.output import engine_arguments, number_table, wide_console
from xshare.engines.transformers.teacher_forcing import Compared
from xshare.policy import RECOMMENDED, Policy
from xshare.quality.task_files import Task
from xshare.results import Row
from xshare.tasks import LONGEST
from xshare.trace import Trace
from xshare.trace.expert_load import load_rows
from xshare.trace.overlap import overlap

SETTINGS = [Setting(batch, 0, mixed) for batch in (16, 32) for mixed in (True, False)]
PAPER = [(24, 1), (0, 1), (0, 2), (12, 1), (12, 2)]  # its (m, k0), by both scores
MILDER = ["k0=0,rho=0.9", "topk:k=3", "k0=2,m=6", "k0=1,m=9", "k0=1,m=12", "lam=0.04,p=2", "lam=0.1,p=2"]
RIVALED: list[tuple[int, int] | str] = [(24, 1), "balanced"]  # the references of rivals
AT_ONCE = 16  # texts per pass of plain perplexity
REPLAYED = 8  # batches, to count experts in advance: smol has five times nano's layers
LISTS = ("calibration", "perplexity", "load", "overlap", "choice")
UNKNOWN = ("accuracy", "accuracy_low", "accuracy_high", "change", "change_low", "change_high", "p", "lost", "won")


class QuestionBench(Bench):
    """Questions, and the perplexity of native's answers to them."""

    def forced(self, setting: Setting, native: Row) -> Row:
        """The texts to force, under `answers`."""
        return native

    def cell(self, setting: Setting, policy: Policy | None, native: Row) -> tuple[Row, list[bool]]:
        row, right = super().cell(setting, policy, native)
        if policy is None:
            row |= self.perplexities(setting, self.compared(setting, None, self.forced(setting, native)))
        return row, right

    def divergence(self, setting: Setting, policy: Policy, native: Row) -> Row:
        texts = self.compared(setting, policy, self.forced(setting, native))
        return self.kl_row(setting, texts) | self.perplexities(setting, texts)

    def perplexities(self, setting: Setting, texts: dict[int, Compared]) -> Row:
        """Perplexities of all texts and per kind, with the KL per kind."""
        kinds = [task.kind for task in self.tasks(setting)]
        row: Row = _perplexity(list(texts.values()))
        row |= _exp_mean("perplexity_ratio", [text.surprise - text.surprise_native for text in texts.values()])
        for kind in dict.fromkeys(task.kind for task in self.job.tasks):
            of_kind = [text for place, text in texts.items() if kinds[place] == kind]
            if of_kind:
                row |= {f"{name} {kind}": value for name, value in _perplexity(of_kind).items()}
                row[f"kl {kind}"] = _mean([text.kl for text in of_kind])
        return row


class TextBench(QuestionBench):
    """Held-out texts, forced as written: there is no right or wrong answer."""

    def forced(self, setting: Setting, native: Row) -> Row:
        engine = self.engine(setting.drafts)
        return {"answers": [engine.encode(task.answer)[: self.job.limit] for task in self.tasks(setting)]}

    def cell(self, setting: Setting, policy: Policy | None, native: Row) -> tuple[Row, list[bool]]:
        row, right = super().cell(setting, policy, native)
        return row | dict.fromkeys(UNKNOWN), right


def _mean(parts: list[torch.Tensor]) -> float:
    return float(torch.cat(parts).mean())


def _perplexity(texts: list[Compared]) -> Row:
    names = {"perplexity": "surprise", "perplexity_native": "surprise_native"}
    return {name: math.exp(_mean([getattr(text, of) for text in texts])) for name, of in names.items()}


def cells_of(settings: list[Setting], experts: int) -> dict[Cell, str]:
    """In the order in which they are measured, each with what the paper calls it."""
    cells: dict[Cell, str] = {(setting, None): "native" for setting in settings}
    cells |= {(setting, no_op(experts)): CONTROL for setting in settings}
    cells |= {(setting, Policy.parse(name)): "" for setting in settings for name in RECOMMENDED}
    for numbers in PAPER:
        full = policy(numbers, experts)
        both = [full, full.model_copy(update={"score": "topk"})] if full.batch_budget else [full]
        cells |= {(setting, which): paper_name(numbers) for setting in settings for which in both}
    milder: dict[Cell, str] = {(setting, Policy.parse(name)): "" for setting in settings for name in MILDER}
    return cells | {cell: name for cell, name in milder.items() if cell not in cells}


def rival_cells(settings: list[Setting], experts: int, top_k: int) -> RivalKnobs:
    references = [Policy.parse(form) if isinstance(form, str) else policy(form, experts) for form in RIVALED]
    return {
        (setting, reference, name): policies
        for setting in settings
        for reference in references
        for name, policies in rivals(reference, experts, top_k).items()
        if name != "score=topk"  # among the paper's
    }


@torch.inference_mode()
def held_out_rows(name: str, folder: str, job: Job) -> list[Row]:
    """Perplexity of a model, dense or not, on the tokens that policies are measured on, per kind and of all."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    dtype = getattr(torch, job.options.get("dtype", "float32"))
    words = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(job.options.get("device", "cpu")).eval()
    surprise: dict[str | None, list[torch.Tensor]] = {}
    for start in range(0, len(job.tasks), AT_ONCE):
        batch = job.tasks[start : start + AT_ONCE]
        prompts = [words(task.prompt).input_ids for task in batch]
        rows = [
            torch.tensor(prompt + words(task.answer).input_ids[: job.limit])
            for prompt, task in zip(prompts, batch, strict=True)
        ]
        hidden = model.model(input_ids=pad_sequence(rows, batch_first=True).to(model.device), use_cache=False)[0]
        for task, prompt, ids, states in zip(
            batch, prompts, rows, hidden, strict=True
        ):  # nothing sees what is after it
            logits = model.lm_head(states[len(prompt) : len(ids) - 1]).double()
            losses = torch.nn.functional.cross_entropy(
                logits, ids[len(prompt) + 1 :].to(logits.device), reduction="none"
            )
            surprise.setdefault(task.kind, []).append(losses.cpu())
    parameters = sum(weight.numel() for weight in model.parameters())
    about: Row = {"model": name, "weights": weights_hash(folder), "parameters": parameters}
    kinds = surprise | {None: [text for texts in surprise.values() for text in texts]}
    return [
        about | {"kind": kind, "texts": len(batch), "tokens": sum(map(len, batch)), **_exp_mean("perplexity", batch)}
        for kind, batch in kinds.items()
    ]


def _exp_mean(name: str, texts: list[torch.Tensor], seed: int = 0) -> Row:
    """exp of the mean over all tokens, with a bootstrap 95 % interval over texts: tokens of one are not independent."""
    sums, tokens = torch.tensor([[float(text.sum()), len(text)] for text in texts], dtype=torch.float64).T
    picks = torch.randint(len(texts), (2000, len(texts)), generator=torch.Generator().manual_seed(seed))
    means = sums[picks].sum(1) / tokens[picks].sum(1)
    low, high = means.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).exp().tolist()
    return {name: math.exp(_mean(texts)), f"{name}_low": low, f"{name}_high": high}


def read_beside(bench: Bench, results: CellResults, beside: dict[str, str]) -> None:
    """Add the perplexities of the mixture and of the models beside it, without a policy."""
    for name, folder in {bench.engine(0).about.model: bench.job.model, **beside}.items():
        if not (Path(folder) / "config.json").is_file():
            typer.echo(f"{name} is not in {folder}: its perplexity is left out")
        elif not any(row["model"] == name for row in results.lists["perplexity"]):
            results.lists["perplexity"] += held_out_rows(name, folder, bench.job)
            results.write()


def describe_routers(results: CellResults, recorded: Callable[..., Trace], traces: list[Path]) -> None:
    """Add expert load, overlap, and how experts are chosen: in this model, and in others' traces."""
    if not results.lists["load"]:
        results.lists["load"] = load_rows(recorded())
        results.lists["overlap"] = overlap(recorded())
        for trace in (recorded(), *map(Trace.load, traces)):
            results.lists["choice"] += [{"model": trace.header.model} | row for row in choice_rows(trace)]
        results.write()


def main(
    model: Annotated[str, typer.Argument(help="The mixture's folder.")],
    texts: Annotated[Path, typer.Argument(help="Held-out texts: JSON lines of recipes/smol/texts.py.")],
    questions: Annotated[Path | None, typer.Option(help="Questions as JSON lines, if it answers any.")] = None,
    beside: Annotated[list[str] | None, typer.Option(help="NAME=FOLDER of a model to read the same texts.")] = None,
    trace: Annotated[list[Path] | None, typer.Option(help="Another model's, to describe its routers, too.")] = None,
    engine_args: Annotated[str, typer.Option(help="device and dtype, as a JSON object.")] = "{}",
    count: Annotated[int, typer.Option(min=1, help="Texts, and questions, as many of each kind.")] = 320,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of a text.")] = 96,
    free: Annotated[int, typer.Option(min=1, help="Tokens of a text's free continuation.")] = 32,
    answer_tokens: take.MaxTokens = LONGEST,
    batch: Annotated[list[int] | None, typer.Option(help="16 or 32 texts together; both if left out.")] = None,
    jobs: take.Jobs = 1,
    threads: take.Threads = None,
    together: take.Together = 320,
    seconds: take.Seconds = None,
    json: take.ResultFile = Path("evidence/third_model.json"),
) -> None:
    options, alone, weights = engine_arguments(engine_args), threads_each(threads, jobs), weights_hash(model)
    began, complete, rows = time.monotonic(), True, []
    sets: list[tuple[str, type[QuestionBench], list[Task], int]] = [
        ("texts", TextBench, tasks_of(texts, count, 0), tokens)
    ]
    if questions is not None and questions.is_file() and questions.stat().st_size:
        sets.append(("questions", QuestionBench, tasks_of(questions, count, 0), answer_tokens))
    for name, kind, tasks, limit in sets:
        goes_on = min(free, limit) if name == "texts" else None
        job = Job(model, options, tasks, limit, len(tasks), 0, alone, together, free=goes_on)
        bench = kind(job)
        about = bench.engine(0).about
        part: Row = {"model": about.model, "weights": weights, "device": about.device, "dtype": about.dtype}
        results = CellResults(
            json, about.record(), job.identity(), KEY, LISTS, part | {"set": name, "tasks": job.identity()["tasks"]}
        )
        settings = [setting for setting in SETTINGS if not batch or setting.batch in batch]
        settings = settings if name == "texts" else settings[:1]
        traces: list[Trace] = []

        def recorded(*_: Any, bench: Bench = bench, traces: list[Trace] = traces) -> Trace:
            """Recorded at the first call only."""
            traces += [] if traces else [bench.recorded()]
            return traces[0]

        if name == "texts":
            read_beside(bench, results, dict(pair.split("=", 1) for pair in beside or []))
        with workers_of(bench, jobs) as workers:
            seconds_left = None if seconds is None else seconds - (time.monotonic() - began)
            runner = CellRunner(bench, workers, results, seconds_left, REPLAYED)
            all_measured = runner.natives(settings) and runner.measure(
                name, cells_of(settings, about.experts), kind.cell
            )
            if name == "texts" and all_measured:
                describe_routers(results, recorded, trace or [])
                knobs = rival_cells(settings, about.experts, about.top_k)
                all_measured = runner.matches(knobs, recorded, kind.cell)
            if all_measured:
                results.finish()
            complete = complete and all_measured
        rows = results.rows
    show(rows)
    say_results(json, complete)


def show(rows: list[Row]) -> None:
    for place in dict.fromkeys((row["set"], Setting.of(row)) for row in rows):
        name, setting = place
        title = f"{name}, {setting.batch} together, {'mixed' if setting.mixed else 'one kind at a time'}"
        table = number_table(title, "policy", "experts", "KL", "perplexity", "agreement", "accuracy")
        for row in (row for row in rows if (row["set"], Setting.of(row)) == place):
            table.add_row(
                row["policy"],
                f"{row['active']:.1f} of {row['active_native']:.1f}",
                f"{row['kl']:.4f}",
                f"{row['perplexity']:.2f} of {row['perplexity_native']:.2f}",
                f"{row['agreement']:.1%}",
                "" if row["accuracy"] is None else f"{row['accuracy']:.1%}",
            )
        wide_console().print(table)


if __name__ == "__main__":
    run(main)
