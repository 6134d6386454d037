"""docs/reference/metrics.md: every figure and every call of the vLLM plugin, from its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import meanings
from fields import MADE, table

ENGINES = Path(__file__).resolve().parents[2] / "src" / "xshare" / "engines"
VLLM = ENGINES / "vllm"


def metrics() -> Iterator[tuple[str, str, str]]:
    """Name, labels and meaning of every figure, from the source: to import it takes vLLM."""
    tree = ast.parse((VLLM / "stat_logger.py").read_text())
    helps: dict[str, str] = {}
    for node in ast.walk(ast.parse((ENGINES / "serving" / "metrics.py").read_text())):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "HELP":
            helps = ast.literal_eval(node.value)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or "MetricFamily" not in node.func.id:
            continue
        labels = ", ".join(f"`{label}`" for label in ast.literal_eval(node.keywords[0].value))
        if isinstance(node.args[0], ast.Constant):
            end = "_total" if node.func.id.startswith("Counter") else ""
            yield f"{ast.literal_eval(node.args[0])}{end}", labels, ast.literal_eval(node.args[1])
        else:  # of several names: two are of all layers together
            for name, meaning in helps.items():
                if (name in ("rows_protected", "samples")) != ("layer" in labels):
                    yield f"xshare:{name}", labels, meaning


def calls() -> Iterator[tuple[str, str, str]]:
    """What collective_rpc finds on a worker: name, arguments and meaning."""
    for node in ast.walk(ast.parse((VLLM / "control.py").read_text())):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("xshare_"):
            arguments = [
                f"`{argument.arg}`: {ast.unparse(argument.annotation or ast.Constant(''))}"
                for argument in node.args.args[1:]
            ]
            meaning = " ".join((ast.get_docstring(node) or "").split())
            yield node.name, ", ".join(arguments) or "none", meaning


def metrics_page() -> str:
    figures = ((f"`{name}`", labels, meaning) for name, labels, meaning in metrics())
    answers = ((f"`{name}`", arguments, meaning) for name, arguments, meaning in calls())
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

{table(["field", "meaning"], ((f"`{name}`", meaning) for name, meaning in meanings.STATS.items()))}"""
