"""Write docs/reference/ from the code: options, settings, policies, files, metrics and calls.

python tools/docs/reference.py [--check]
"""

from __future__ import annotations

import ast
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import meanings
import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import xshare
from xshare.cli.lazy import COMMANDS
from xshare.cli.methods import LETTER_HELP
from xshare.engines.gates import Gates
from xshare.engines.vllm.settings import KernelGates, Metrics, Settings
from xshare.methods import METHODS
from xshare.policy import EXCLUSIVE, FIELD_LETTERS, LETTERS, PRESETS, Policy
from xshare.profile import Profile, Weighed
from xshare.trace.file import Header

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "reference"
VLLM = ROOT / "src" / "xshare" / "engines" / "vllm"
MADE = "Made from the code by `make docs`: change the code, not this page.\n"


def table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = list(titles)
    lines = [titles, ["---"] * len(titles), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


# Commands


def commands() -> Iterator[tuple[str, Callable[..., Any]]]:
    """By its words, the function of every command."""
    for name in COMMANDS:
        module = import_module(f"xshare.cli.{name}")
        group = getattr(module, "app", None)
        if group is None:
            yield name, getattr(module, name)
        else:
            for each in group.registered_commands:
                yield f"{name} {each.name or each.callback.__name__}", each.callback


def command_section(name: str, function: Callable[..., Any]) -> str:
    hints = typing.get_type_hints(function, include_extras=True)
    arguments, options = [], []
    for parameter in inspect.signature(function).parameters.values():
        kind, info = get_args(hints[parameter.name])
        if info.hidden:
            continue
        meaning = info.help or ""
        if isinstance(info, typer.models.ArgumentInfo):
            arguments.append((info.metavar or parameter.name.upper(), meaning))
            continue
        names = ", ".join(f"`{each}`" for each in spellings(parameter.name, kind, info))
        options.append((names, values(kind, info), default(parameter, info), meaning))
    usage = " ".join([f"xshare {name}", *(word for word, _ in arguments), *(["[OPTIONS]"] if options else [])])
    text = f"## xshare {name}\n\n{inspect.getdoc(function)}\n\n```sh\n{usage}\n```\n"
    text += (
        f"\n{table(['argument', 'meaning'], ((f'`{word}`', said) for word, said in arguments))}" if arguments else ""
    )
    text += f"\n{table(['option', 'value', 'default', 'meaning'], options)}" if options else ""
    return text


def spellings(name: str, kind: Any, info: Any) -> list[str]:
    """Those that the option names, the first of which Typer takes for a default; or the parameter's own name."""
    named = [each for each in (info.default, *(info.param_decls or ())) if isinstance(each, str) and each[0] == "-"]
    own = name.replace("_", "-")
    return named or [f"--{own}", *([f"--no-{own}"] if kind is bool else [])]


def values(kind: Any, info: Any) -> str:
    low, high = info.min, info.max
    kind, several = without_none(kind), ""
    if get_origin(kind) is list:
        kind, several = get_args(kind)[0], ", may be repeated"
    if get_origin(kind) is Literal:
        return ", ".join(f"`{each}`" for each in get_args(kind)) + several
    name = {int: "whole number", float: "number", str: "text", Path: "file", bool: "flag"}[kind]
    return name + limits(low, high) + several


def default(parameter: inspect.Parameter, info: Any) -> str:
    if isinstance(info.show_default, str):
        return info.show_default
    if parameter.default is inspect.Parameter.empty:
        return "required"
    if isinstance(parameter.default, bool):
        return "on" if parameter.default else ""
    return "" if parameter.default is None else f"`{parameter.default}`"


def without_none(kind: Any) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        kinds = [each for each in get_args(kind) if each is not type(None)]
        return kinds[0] if len(kinds) == 1 else kind
    return kind


def limits(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f", {low:g} to {high:g}"
    return f", {low:g} or more" if low is not None else f", {high:g} at most" if high is not None else ""


def commands_page() -> str:
    said = "Exit code 2 and one sentence on standard error mean that something was wrong with what was asked."
    return "\n".join(
        [f"# Commands\n\n{MADE}\n{said}\n", *(command_section(name, function) for name, function in commands())]
    )


# Fields of models


def fields_table(model: type[BaseModel], prefix: str = "", leave_out: tuple[str, ...] = ()) -> str:
    rows = []
    for name, field in model.model_fields.items():
        if name not in leave_out:
            start = "required" if field.default is PydanticUndefined else shown(field.default)
            rows.append((f"`{prefix}{name}`", field_values(field), start, field.description or ""))
    return table(["field", "value", "default", "meaning"], rows)


def field_values(field: Any) -> str:
    kind = without_none(field.annotation)
    low = next((m.ge for m in field.metadata if hasattr(m, "ge")), None)
    above = next((m.gt for m in field.metadata if hasattr(m, "gt")), None)
    high = next((m.le for m in field.metadata if hasattr(m, "le")), None)
    high = None if high == 2**31 - 1 else high
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return ", ".join(f"`{each}`" for each in get_args(kind))
    if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not Policy:
        return "object"
    name = {int: "whole number", float: "number", str: "text", bool: "true or false", Policy: "text"}.get(kind)
    if name is None:
        name = {list: "list", dict: "object"}[get_origin(kind)]
    if above is not None:
        return f"{name} above {above:g}" + (f", {high:g} at most" if high is not None else "")
    return name + limits(low, high)


def shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, BaseModel):
        return "below"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


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


# Policies


def policies_page() -> str:
    described = LETTER_HELP
    rows = []
    for letter, name in LETTERS.items():
        field = Policy.model_fields[name]
        start = "`{}`" if field.default == {} else shown(field.default)
        rows.append((f"`{letter}`", f"`{name}`", field_values(field), start, described[letter]))
    pairs = [[FIELD_LETTERS[name] for name in pair] for pair in EXCLUSIVE]
    rivals = []
    for method in sorted(METHODS.values(), key=lambda method: (method.name != "xshare", method.name)):
        knobs = [FIELD_LETTERS[name] for name in method.knobs.fields] if method.name != "xshare" else ["all above"]
        own = [f"`{name}`: {knob.help}" for name, knob in method.knobs.params.items()]
        rivals.append((f"`{method.name}`", method.summary, "; ".join([", ".join(knobs), *own]).strip("; ") or "none"))
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


# Files


def files_page() -> str:
    sections = []
    for command in meanings.FILES:
        rows = ((f"`{name}`", meanings.COLUMNS[name]) for name in meanings.columns(command))
        sections.append(f"## {command}\n\n{table(['column', 'meaning'], rows)}")
    return f"""# Files

{MADE}
## Result files

`--out FILE` writes `{{"provenance": {{...}}, "rows": [...]}}`.

{table(["part", "meaning"], ((f"`{name}`", said) for name, said in meanings.PARTS.items()))}
The sections below list the columns of `rows`, by command. A column with an interval has its ends beside it:
`ratio_low` and `ratio_high`. Files from before spell them `_lo` and `_hi`. `accuracy KIND` is the accuracy in one
kind of question.

{chr(10).join(sections)}
## Profile

A YAML file that [`xshare tune`](../tune.md) writes and vLLM serves.

{fields_table(Profile)}
`cost` has two fields:

{fields_table(Weighed, "cost.")}
## Trace

A safetensors file with a JSON header under `xshare_trace`. [Traces](../traces.md) describes its tensors.

{fields_table(Header)}"""


# Metrics and calls


def metrics() -> Iterator[tuple[str, str, str]]:
    """Name, labels and meaning of every figure, from the source: to import it takes vLLM."""
    tree = ast.parse((VLLM / "stat_logger.py").read_text())
    helps: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "HELP":
            helps = ast.literal_eval(node.value)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or "MetricFamily" not in node.func.id:
            continue
        labels = ", ".join(f"`{each}`" for each in ast.literal_eval(node.keywords[0].value))
        if isinstance(node.args[0], ast.Constant):
            end = "_total" if node.func.id.startswith("Counter") else ""
            yield f"{ast.literal_eval(node.args[0])}{end}", labels, ast.literal_eval(node.args[1])
        else:  # of several names: `rows_protected` is a step's, the others are a layer's
            for name, said in helps.items():
                if (name == "rows_protected") != ("layer" in labels):
                    yield f"xshare:{name}", labels, said


def calls() -> Iterator[tuple[str, str, str]]:
    """What collective_rpc finds on a worker: name, arguments and meaning."""
    for node in ast.walk(ast.parse((VLLM / "control.py").read_text())):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("xshare_"):
            arguments = [
                f"`{each.arg}`: {ast.unparse(each.annotation or ast.Constant(''))}" for each in node.args.args[1:]
            ]
            said = " ".join((ast.get_docstring(node) or "").split())
            yield node.name, ", ".join(arguments) or "none", said


def metrics_page() -> str:
    figures = ((f"`{name}`", labels, said) for name, labels, said in metrics())
    answers = ((f"`{name}`", arguments, said) for name, arguments, said in calls())
    return f"""# Metrics and calls

{MADE}
## Metrics

In vLLM's own `/metrics`. Means are over sampled steps since the last change of policy.

{table(["name", "labels", "meaning"], figures)}
`reason` is one of the [bypass reasons](../troubleshooting.md#bypass-reasons).

## Calls

`LLM.collective_rpc(NAME, args=(...))`, or `POST /collective_rpc {{"method": NAME, "args": [...]}}` of a server in
development mode ([live control](../vllm/live.md)).

{table(["name", "arguments", "meaning"], answers)}
## xshare_stats

The figures of the metrics by layer, and:

{table(["field", "meaning"], ((f"`{name}`", said) for name, said in meanings.STATS.items()))}"""


# Python


def python_page() -> str:
    sections = []
    for name in xshare.__all__:
        thing = getattr(xshare, name)
        if not callable(thing):
            continue
        said = inspect.getdoc(thing) or ""
        head = f"class {name}" if inspect.isclass(thing) else f"{name}{inspect.signature(thing)}"
        sections.append(f"## {name}\n\n```python\n{head}\n```\n\n```text\n{said}\n```\n" if said else f"## {name}\n")
    return f"# Python\n\n{MADE}\n`import xshare`. [In Python](../python.md) shows how to use it.\n\n" + "\n".join(
        sections
    )


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
