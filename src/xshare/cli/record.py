"""`xshare trace record`: decode prompts with a Transformers model, and keep what its routers saw."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from xshare import models
from xshare.cli.output import progress_bar
from xshare.engines.recording import record_folder
from xshare.files import check_apart, check_writable
from xshare.results import sha256
from xshare.trace.prompts import read_prompts


def record_command(
    model: Annotated[str, typer.Argument(help="A folder with a Transformers model and its tokenizer, or nano.")],
    prompts: Annotated[Path, typer.Option(help="One prompt a line, or a .jsonl file with prompt and domain.")],
    output: Annotated[Path, typer.Option("--output", "--out", "-o", help="The trace file to write (safetensors).")],
    tokens: Annotated[int, typer.Option(min=2, help="Most tokens to decode after each prompt.")] = 64,
    batch: Annotated[int, typer.Option(min=1, help="Prompts decoded together.")] = 8,
    chat: Annotated[bool, typer.Option("--chat", help="Send prompts through the tokenizer's chat template.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 ...")] = "cpu",
    dtype: Annotated[str, typer.Option(help="auto (as stored), float32, bfloat16 ...")] = "auto",
    name: Annotated[str | None, typer.Option(help="Model name in the trace; the folder's if none is given.")] = None,
) -> None:
    """Decode prompts greedily, as the model does by itself, and write the routers' full logits as a trace."""
    check_apart([output], [prompts])
    check_writable(output)
    found = read_prompts(prompts)
    folder = models.folder(model) if model in models.NAMES else Path(model)
    source = {"source": prompts.name, "source_sha256": sha256(prompts)}
    options = {"tokens": tokens, "batch": batch, "chat": chat}
    with progress_bar("prompts", len(found)) as advance:
        trace = record_folder(
            folder,
            found,
            device=device,
            dtype=dtype,
            name=name or folder.resolve().name,
            tokens=tokens,
            batch=batch,
            chat=chat,
            advance=advance,
            source=source | options,
        )
    trace.save(output)
    layers = len(trace.header.layers)
    typer.echo(
        f"{output}: {trace.header.model}, {trace.tokens:,} tokens, {len(trace.lengths)} sequences, {layers} layers"
    )
