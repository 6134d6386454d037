"""Old names of options, which still work."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

# Old -> new, for commands that have the new name and not the old one.
OPTIONS = {"--json": "--out", "--output": "--out", "--draft": "--drafts", "--model": "--name"}
WORDS = {("--mix", "domain"): "mixed", ("--mix", "single"): "alike"}


class Command(TyperCommand):
    """A command that also accepts old spellings, which its help does not show."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        names = {name for param in self.params for name in param.opts}
        old = {was: now for was, now in OPTIONS.items() if now in names and was not in names}
        return super().parse_args(ctx, upgrade_args(args, old))


def upgrade_args(args: list[str], old: dict[str, str]) -> list[str]:
    upgraded: list[str] = []
    for word in args:
        name, equals, value = word.partition("=")
        name = old.get(name, name)
        value = WORDS.get((name, value), value)
        word = WORDS.get((upgraded[-1] if upgraded else "", word), word)
        upgraded.append(f"{name}={value}" if equals and name.startswith("--") else old.get(word, word))
    return upgraded
