"""A page of /metrics, in Prometheus's text form, as samples."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: -?\d+)?$", re.MULTILINE)  # name, labels, value, time
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
ESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


@dataclass(frozen=True)
class Sample:
    name: str
    value: float
    labels: dict[str, str] = field(default_factory=dict)


def samples(page: str) -> Iterator[Sample]:
    """The samples on a page; lines of another form are skipped."""
    for name, labels, text in LINE.findall(page):
        try:
            value = float(text)
        except ValueError:
            continue
        yield Sample(name, value, {label: _unescape(written) for label, written in LABEL.findall(labels)})


def _unescape(text: str) -> str:
    return re.sub(r"\\.", lambda match: ESCAPED.get(match[0], match[0]), text)
