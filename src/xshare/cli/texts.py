"""xshare quality --texts: the perplexity of given texts under each policy."""

from __future__ import annotations

from xshare.cli.output import number_table, print_table, progress_bar, wide_console
from xshare.engines.base import About
from xshare.policy import Policy
from xshare.quality.texts import TextStudy
from xshare.results import Results, Row

GIVEN, FORCED = 64, 128  # tokens of a text that are read as a prompt, and that are forced


def measure_texts(study: TextStudy, policies: list[Policy | None], mixes: list[bool], results: Results) -> None:
    """Measure all policies. Shows what was measured even after an error."""
    rows: list[Row] = []
    try:
        with progress_bar("texts", len(study.texts) * len(policies) * len(mixes)) as advance:
            for mixed in mixes:
                for row in study.run(policies, mixed, advance):
                    rows.append(row)
                    results.put([row], by=("policy", "mixed"))
                    results.write()
    finally:
        if rows:
            show_texts(rows, study.engine.about, study)
            if results.path is not None:
                wide_console().print(f"results: {results.path}")


def show_texts(rows: list[Row], about: About, study: TextStudy) -> None:
    title = f"{about.model} on {about.engine}, {len(study.texts)} texts, {study.batch} decoded together"
    table = number_table(
        title, "policy", "batches", "experts", "mass", "KL", "same token", "perplexity", "vs native", "95 %"
    )
    for row in rows:
        table.add_row(
            row["policy"],
            "mixed" if row["mixed"] else "alike",
            "-" if row["active"] is None else f"{row['active']:.1f} of {row['active_native']:.1f}",
            "-" if row["mass"] is None else f"{row['mass']:.3f}",
            f"{row['kl']:.4f}",
            f"{row['same_token']:.1%}",
            f"{row['perplexity']:.2f}",
            *_worse(row),
        )
    print_table(table, "mass", "same token", "batches")
    console = wide_console()
    console.print(
        f"perplexity: of up to {study.limit} tokens of each text, behind {study.given} that are read as a prompt, "
        "forced as if decoded side by side; vs native: the same tokens routed natively."
    )
    if rows[0]["perplexity_ratio_low"] is None:
        console.print("An interval takes six batches or more.")


def _worse(row: Row) -> tuple[str, str]:
    if row["method"] == "native":
        return "", ""
    ratio, low, high = (row[f"perplexity_ratio{end}"] for end in ("", "_low", "_high"))
    return f"{ratio - 1:+.1%}", "-" if low is None else f"{low - 1:+.1%} to {high - 1:+.1%}"
