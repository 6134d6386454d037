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
    # `trace record MODEL`, from before there was --model
    folder: Annotated[str | None, typer.Argument(hidden=True, metavar="[MODEL]")] = None,
    model: take.Model = None,
    prompts: take.Prompts = "questions",
    prompt_tokens: take.PromptTokens = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Prompts to decode.", show_default="one batch; for a file, all")
    ] = None,
    # at least 2: the first comes with the prompt, and has no row in the trace
    tokens: Annotated[int, typer.Option(min=2, help="Tokens to decode after each prompt, at most.")] = 64,
    batch: Annotated[int, typer.Option(min=1, help="Prompts decoded together.")] = 8,
    chat: Annotated[bool, typer.Option("--chat", help="Format prompts with the tokenizer's chat template.")] = False,
    seed: take.Seed = 0,
    device: take.Device = None,
    dtype: take.Dtype = None,
    name: take.Name = None,
) -> None:
    """Decode prompts greedily with native routing, and write the routers' full logits as a trace."""
    if folder is not None and model is not None:
        raise XShareError(f"the model is named twice, as {folder} and as --model {model}: name it once")
    model = folder or model or "nano"
    generated = prompts in KEYWORDS
    check_distinct_paths([out], [] if generated else [Path(prompts)])
    check_writable(out)
    file_prompts = prompts_from_file(prompts)[:requests]  # none for a keyword
    num_prompts = len(file_prompts) or requests or batch
    prompt_provenance: dict[str, Any] = {"source": prompts, "seed": seed}
    if not generated:
        prompt_provenance = {"source": Path(prompts).name, "source_sha256": sha256(Path(prompts))}
    prompt_provenance |= {"tokens": tokens, "batch": batch, "chat": chat}

    def make_prompts(tokenizer: Tokens) -> list[Prompt]:
        """The prompts as text, cut to `prompt_tokens`: recording tokenizes them itself."""
        if generated:
            workload = Workload(
                batch=batch,
                requests=num_prompts,
                rate=None,
                prompt_tokens=prompt_tokens or TOKENS,
                tokens=tokens,
                prompts=prompts,
                seed=seed,
            )
            return [Prompt(tokenizer.decode(ids), domain=prompts) for ids in workload.prompts_of(tokenizer, repeat=0)]
        if prompt_tokens is None:
            return file_prompts
        texts = [tokenizer.decode(tokenizer.encode(prompt.text)[-prompt_tokens:]) for prompt in file_prompts]
        return [Prompt(text, prompt.domain) for text, prompt in zip(texts, file_prompts, strict=True)]

    model_folder = models.folder(model) if model in models.NAMES else Path(model)
    with progress_bar("prompts", num_prompts) as advance:
        trace = record_folder(
            model_folder,
            make_prompts,
            device=device or "cpu",
            dtype=dtype or "auto",
            name=name or model_folder.resolve().name,
            tokens=tokens,
            batch=batch,
            chat=chat,
            advance=advance,
            source=prompt_provenance,
        )
    trace.save(out)
    layers = len(trace.header.layers)
    typer.echo(f"{out}: {trace.header.model}, {trace.tokens:,} tokens, {len(trace.lengths)} sequences, {layers} layers")
