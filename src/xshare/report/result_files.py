"""The result files of a folder, recognised by their columns. Files that cannot be read are named and left out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from xshare.errors import XShareError
from xshare.files import is_folder, quoted_path
from xshare.report.labels import with_variant_name
from xshare.results import Row, with_current_policies
from xshare.results.resumable import STAMP

SPEED = {"ratio", "tokens_per_s", "otps", "step_ms", "ttft_ms", "itl_p50_ms", "ttft_ms_p50", "itl_ms_p50"}
QUALITY = {"accuracy", "agreement", "kl", "mass"}
STAIRS = "time of a step by the size of its set"
# Kind of measurement -> columns that only such a file has. The first match counts.
KINDS = (
    (STAIRS, {"batch", "experts", "ms", "ms_low", "ms_high", "cost"}),
    ("active experts against batch size", {"policy", "batch", "active", "closed_form"}),
    ("replay of a trace", {"policy", "active", "active_native", "mass", "top1_kept"}),
    ("experts that two tokens share", {"pair", "top", "overlap", "chance"}),
    ("routing fitted to a trace", {"quantity", "target", "reached"}),
    ("load of the experts", {"layer", "entropy", "load"}),
    ("time of the selection on a GPU", {"impl", "policy", "n", "marginal_us"}),
    ("time of routing on a GPU", {"rows", "native_us", "one_us", "compared", "differ"}),
    ("time of the selection on a CPU", {"policy", "rows", "selection_us", "reference_us"}),
    ("cost of the selection on a CPU", {"question", "policy", "n", "ratio"}),
    ("protected requests in fixed batches", {"policy", "protected_same", "others_moved", "batches"}),
    ("time of the kernels of a step", {"who", "part", "kernel", "launches", "us"}),
    ("size of the compiled selection", {"rows", "thresholds", "code_bytes", "registers"}),
    ("checks", {"check", "passed"}),
)


@dataclass(frozen=True)
class ResultFile:
    name: str
    raw: bytes
    provenance: dict[str, Any]
    rows: list[Row]
    later: tuple[Row, ...] = ()  # stamps of later runs that continued the file

    @cached_property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(column for row in self.rows for column in row))

    @cached_property
    def kind(self) -> str | None:
        """What the file measured, in words; None if its columns are not known."""
        columns = set(self.columns)
        for kind, required in KINDS:
            if required <= columns:
                return kind
        if "policy" not in columns:
            return None
        speed, quality = columns & SPEED, columns & QUALITY
        if speed and quality:
            return "speed and quality"
        return "speed" if speed else "quality" if quality else "active experts" if "active" in columns else None


def read_folder(folder: Path) -> tuple[list[ResultFile], list[str]]:
    """-> the result files, and a sentence for each file that is something else."""
    if not is_folder(folder):
        raise XShareError(f"{quoted_path(folder)} is not a folder: expected one with result files")
    files, notes = [], []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or not path.is_file():
            continue
        try:
            if not _looks_like_json(path):
                continue  # a plot, a trace or a page, which needs no note
            file = read_result(path)
        except XShareError as error:
            notes.append(str(error))
        except OSError as error:
            notes.append(f"{path.name}: {error.strerror or error}")
        else:
            files.append(file)
            if file.kind is None:
                notes.append(
                    f"{path.name}: columns of no known kind ({', '.join(file.columns[:8])}), shown as a table only"
                )
    return files, notes


def _looks_like_json(path: Path) -> bool:
    if path.suffix == ".json":
        return True
    with path.open("rb") as file:
        return file.read(64).lstrip().startswith(b"{")


def read_result(path: Path) -> ResultFile:
    raw = path.read_bytes()
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        raise XShareError(f"{path.name}: not JSON, or cut off; expected a result file") from None
    stamp, rows = (content.get("provenance"), content.get("rows")) if isinstance(content, dict) else (None, None)
    if not isinstance(stamp, dict) or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise XShareError(f'{path.name}: not a result file, expected {{"provenance": {{...}}, "rows": [records]}}')
    if not any(rows):
        raise XShareError(f"{path.name}: a result file without rows")
    rows, later = with_current_policies(content)["rows"], content.get("stamps")
    later = tuple(entry for entry in later if isinstance(entry, dict)) if isinstance(later, list) else ()
    # Which run made a row is not a result.
    rows = [with_variant_name({k: v for k, v in row.items() if k != STAMP}) for row in rows]
    return ResultFile(path.name, raw, stamp, rows, later)
