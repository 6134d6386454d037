"""Write docs/reference/ from the code: options, settings, policies, files, metrics, calls and names.

python tools/docs/reference.py [--check]
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import meanings
import typer
from command_page import commands_page
from fields import MADE, field_values, fields_table, shown, table
from metrics_page import metrics_page
from python_page import python_page

from xshare.cli.methods import LETTER_HELP
from xshare.engines.gates import Gates
from xshare.engines.serving.settings import KernelGates, Metrics, Settings
from xshare.methods import METHODS
from xshare.policy import EXCLUSIVE, FIELD_LETTERS, LETTERS, PRESETS, Policy
from xshare.profile import Profile, StaircaseFile
from xshare.trace.file import Header

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"


def settings_page() -> str:
    return f"""# Settings of vLLM

{MADE}
Fields of the `xshare` key: `vllm serve MODEL --additional-config '{{"xshare": {{...}}}}'`. An unknown key, a wrong type
or an impossible value stops the start, and one sentence [names the field](../troubleshooting/start.md). No number may
exceed 2147483647.

{fields_table(Settings)}
In place of `policy`, the fields of a [policy](policies.md) may stand as keys of their own:
`{{"xshare": {{"coverage": 0.7}}}}`.

A profile or a staircase that cannot be read, and budgets for layers that the model does not have, are refused before
weights are loaded (of gpt-oss, Mixtral, OLMoE and Qwen-MoE; of other models, once they are loaded).

## `gates`

{inspect.getdoc(Gates)}

{fields_table(KernelGates, "gates.")}
A no-op control is `{{"warmup": 1, "batch_budget": N, "gates": {{"bypass": false}}}}`.

## `metrics`

{inspect.getdoc(Metrics)}

{fields_table(Metrics, "metrics.")}"""


def policies_page() -> str:
    rows = []
    for letter, name in LETTERS.items():
        field = Policy.model_fields[name]
        start = "`{}`" if field.default == {} else shown(field.default)
        rows.append((f"`{letter}`", f"`{name}`", field_values(field), start, LETTER_HELP[letter]))
    pairs = [[FIELD_LETTERS[name] for name in pair] for pair in EXCLUSIVE]
    rivals = []
    for method in sorted(METHODS.values(), key=lambda method: (method.name != "xshare", method.name)):
        knobs = [FIELD_LETTERS[name] for name in method.knobs.fields] if method.name != "xshare" else ["all above"]
        knob_texts = [f"`{name}`: {knob.help}" for name, knob in method.knobs.params.items()]
        rivals.append(
            (f"`{method.name}`", method.summary, "; ".join([", ".join(knobs), *knob_texts]).strip("; ") or "none")
        )
    return f"""# Policies

{MADE}
A policy is a string, `method:letter=value,...`. The method is `xshare` where none is named. `str(policy)` is the
canonical string. As JSON or YAML a policy is a mapping of its fields, and a rival's own knobs stand under `params`:
`{{"method": "skip", "params": {{"beta": 0.5}}}}`. `Policy.parse`, `Policy.of` and `policy.to_dict()` go back and forth.
`policy.for_layer(number)` is the policy of one layer, which `route` and `select` want.

## Letters

{table(["letter", "field", "value", "default", "meaning"], rows)}
[What XShare computes](../algorithms.md) defines them exactly. Files from before `format` 2 that name no score mean
`score=full`, and are read so.

## What excludes each other

Each of these says how many experts are chosen last, so that only one of them can:
{", ".join(f"`{one}` and `{other}`" for one, other in pairs)}.

## Presets

A preset's name stands wherever a policy does.

{table(["preset", "policy"], ((f"`{name}`", f"`{text}`") for name, text in PRESETS.items()))}
## Methods

{table(["method", "what it does", "knobs"], rivals)}"""


def files_page() -> str:
    sections = []
    for command in meanings.FILES:
        rows = ((f"`{name}`", meanings.COLUMNS[name]) for name in meanings.columns(command))
        sections.append(f"## {command}\n\n{table(['column', 'meaning'], rows)}")
    return f"""# Files

{MADE}
## Result files

`--out FILE` writes `{{"provenance": {{...}}, "rows": [...]}}`.

{table(["part", "meaning"], ((f"`{name}`", meaning) for name, meaning in meanings.PARTS.items()))}
The sections below list the columns of `rows`, by command. A column with an interval has its ends beside it:
`ratio_low` and `ratio_high`. Files from before spell them `_lo` and `_hi`. `accuracy KIND` is the accuracy in one
kind of question.

{chr(10).join(sections)}
## Profile

A YAML file that [`xshare tune`](../tune.md) writes and vLLM serves.

{fields_table(Profile)}
`cost` has two fields:

{fields_table(StaircaseFile, "cost.")}
## Trace

A safetensors file with a JSON header under `xshare_trace`. [Traces](../traces.md) describes its tensors.

{fields_table(Header)}"""


PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands_page,
    "settings.md": settings_page,
    "policies.md": policies_page,
    "files.md": files_page,
    "metrics.md": metrics_page,
    "python.md": python_page,
}


def main(
    check: Annotated[bool, typer.Option("--check", help="Only say whether the pages are up to date.")] = False,
) -> None:
    for name, page in PAGES.items():
        path, after = FOLDER / name, page().strip() + "\n"
        before = path.read_text() if path.exists() else ""
        if check and after != before:
            typer.echo(f"docs/reference/{name} is not what the code says: run `make docs`", err=True)
            raise typer.Exit(1)
        if after != before:
            path.write_text(after)


if __name__ == "__main__":
    typer.run(main)
