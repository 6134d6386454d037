"""Options that the benchmarks of the answers share: one meaning and one help text each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Questions = Annotated[int, typer.Option(min=1, help="Questions, as many of each kind.")]
QuestionFile = Annotated[Path | None, typer.Option(help="Questions as JSON lines, instead of nano's own.")]
ForcedAnswers = Annotated[int, typer.Option(min=1, help="Answers that are forced, for the KL.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="max_tokens of an answer.")]
Jobs = Annotated[int, typer.Option(min=1, help="Worker processes, each with its own engine.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads per process.")]
Together = Annotated[
    int, typer.Option(min=1, help="Sequences per forward pass: several batches, each with its own set.")
]
Seconds = Annotated[float | None, typer.Option(help="Start no cell that would not be done by then.")]
ResultFile = Annotated[Path, typer.Option(help="Results; an existing file is continued.")]
