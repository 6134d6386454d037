"""Options that several commands share: one name and one meaning each. Old spellings are in old_options.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_ENGINE = "vllm where it is installed and has a GPU, otherwise transformers"

Engine = Annotated[
    str | None,
    typer.Option(help="transformers, vllm, or the address of a running server.", show_default=DEFAULT_ENGINE),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        help="API key of the server. Other users cannot see it if it is set in the environment.",
        show_default="OPENAI_API_KEY, if it is set",
    ),
]
CaFile = Annotated[
    Path | None,
    typer.Option(
        help="For a server: certificates to trust (PEM) in addition to the system's.",
        show_default="SSL_CERT_FILE, if it is set",
    ),
]
LocalEngine = Annotated[str | None, typer.Option(help="transformers or vllm.", show_default=DEFAULT_ENGINE)]
Model = Annotated[
    str | None, typer.Option(help="A folder, or nano; for a server, one of its models.", show_default="nano")
]
Name = Annotated[str | None, typer.Option(help="Model name in the trace.", show_default="the file's or folder's")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 ...", show_default="the engine's")]
Dtype = Annotated[str | None, typer.Option(help="auto (as stored), float32, bfloat16 ...", show_default="the engine's")]
EngineArgs = Annotated[str, typer.Option(help="Further engine arguments, as a JSON object.")]

Policies = Annotated[
    list[str] | None, typer.Option("--policy", help="k0=1,m=16, oea:k0=2, a preset ...; may be repeated.")
]
Drafts = Annotated[int, typer.Option(min=0, help="Draft tokens per request and step.")]
Protect = Annotated[
    list[float] | None,
    typer.Option(
        min=0, max=1, help="Also measure with this share of the requests protected, such as 0.1; may be repeated."
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Another seed gives other prompts or questions, in another order.")]

Prompts = Annotated[
    str,
    typer.Option(
        help="questions (worked ones), random (tokens, for random weights), or a file: one prompt per line, "
        "or .jsonl with prompt and domain."
    ),
]
PromptTokens = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Tokens per prompt; longer prompts of a file keep their last ones.",
        show_default="64; for a file, all",
    ),
]
Tasks = Annotated[
    Path | None, typer.Option(help="JSON lines with question and answer.", show_default="nano's own questions")
]
TasksOrNames = Annotated[
    str | None,
    typer.Option(
        help="JSON lines with question and answer; or tasks of lm-evaluation-harness by name: gsm8k,ifeval.",
        show_default="nano's own questions",
    ),
]
TaskFolder = Annotated[
    Path | None,
    typer.Option(help="A folder with your own tasks for lm-evaluation-harness (YAML), in addition to its own."),
]

Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Result file (JSON), written during the run; an existing file is continued."),
]
OutAlways = Annotated[
    Path, typer.Option("--out", "-o", help="Result file (JSON), written during the run; an existing file is continued.")
]
OutRows = Annotated[Path | None, typer.Option("--out", "-o", help="Result file (JSON): rows and their provenance.")]
OutTrace = Annotated[
    Path, typer.Option("--out", "-o", help="The trace file to write (safetensors; compressed if its name ends in .xz).")
]
Cost = Annotated[
    Path | None,
    typer.Option(help="Weigh sets by what they cost on this machine: a file from doctor --stairs."),
]
Plot = Annotated[Path | None, typer.Option(help="Draw to this .png or .svg.")]
