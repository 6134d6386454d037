"""`xshare trace record`: decode prompts with a Transformers model, and write its router logits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from xshare import models
from xshare.bench.workload import Workload
from xshare.cli import options as take
from xshare.cli.output import progress_bar
from xshare.cli.prompts import KEYWORDS, TOKENS, prompts_from_file
from xshare.engines.trace_recording import Tokens, record_folder
from xshare.errors import XShareError
from xshare.files import check_distinct_paths, check_writable
from xshare.results import sha256
from xshare.trace.prompt_file import Prompt


def record_command(
    out: take.OutTrace,
    folder: Annotated[str | None, typer.Argument(hidden=True, metavar="[MODEL]")] = None,  # the old form of --model
    model: take.Model = None,
    prompts: take.Prompts = "questions",
    prompt_tokens: take.PromptTokens = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Prompts to decode.", show_default="one batch; for a file, all")
    ] = None,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens to decode after each prompt, at most.")] = 64,
    batch: Annotated[int, typer.Option(min=1, help="Prompts decoded together.")] = 8,
    chat: Annotated[bool, typer.Option("--chat", help="Send prompts through the tokenizer's chat template.")] = False,
    seed: take.Seed = 0,
    device: take.Device = None,
    dtype: take.Dtype = None,
    name: take.Name = None,
) -> None:
    """Decode prompts greedily, as the model does by itself, and write the routers' full logits as a trace."""
    if folder is not None and model is not None:
        raise XShareError(f"the model is named twice, as {folder} and as --model {model}: name it once")
    model = folder or model or "nano"
    generated = prompts in KEYWORDS
    check_distinct_paths([out], [] if generated else [Path(prompts)])
    check_writable(out)
    file_prompts = prompts_from_file(prompts)[:requests]
    count = len(file_prompts) or requests or batch
    source: dict[str, Any] = {"source": prompts, "seed": seed} if generated else {"source": Path(prompts).name}
    source |= {} if generated else {"source_sha256": sha256(Path(prompts))}
    source |= {"tokens": tokens, "batch": batch, "chat": chat}

    def to_decode(tokenizer: Tokens) -> list[Prompt]:
        if generated:
            workload = Workload(batch, count, None, prompt_tokens or TOKENS, tokens, prompts, seed)
            return [Prompt(tokenizer.decode(prompt), prompts) for prompt in workload.prompts_of(tokenizer, 0)]
        if prompt_tokens is None:
            return file_prompts
        return [Prompt(tokenizer.decode(tokenizer.encode(p.text)[-prompt_tokens:]), p.domain) for p in file_prompts]

    where = models.folder(model) if model in models.NAMES else Path(model)
    with progress_bar("prompts", count) as advance:
        trace = record_folder(
            where,
            to_decode,
            device=device or "cpu",
            dtype=dtype or "auto",
            name=name or where.resolve().name,
            tokens=tokens,
            batch=batch,
            chat=chat,
            advance=advance,
            source=source,
        )
    trace.save(out)
    layers = len(trace.header.layers)
    typer.echo(f"{out}: {trace.header.model}, {trace.tokens:,} tokens, {len(trace.lengths)} sequences, {layers} layers")
