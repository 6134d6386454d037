"""The size of compiled kernels, without a GPU."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "kernel_code.py"


@pytest.mark.skipif(platform.system() != "Linux", reason="Triton's package for this system has no compiler for GPUs")
def test_kernels_are_compiled_and_measured(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path / "cache")
    file = tmp_path / "kernel_code.json"
    command = [sys.executable, str(SCRIPT), "--rows", "4", "--json", str(file)]
    subprocess.run(command, check=True, env=environment, timeout=300)
    rows = json.loads(file.read_text())["rows"]
    assert [(row["each"], row["thresholds"]) for row in rows] == [
        (of_request, which) for of_request in (0, 4) for which in ("none", "coverage", "all")
    ]
    for few, some, most in (rows[:3], rows[3:]):
        assert 0 < few["code_bytes"] < some["code_bytes"] < most["code_bytes"] < 1 << 20
    assert all(0 < row["registers"] <= 255 and row["stack_bytes"] >= 0 for row in rows)


@pytest.mark.skipif(platform.system() != "Linux", reason="Triton's package for this system has no compiler for GPUs")
@pytest.mark.parametrize(("options", "refused"), [
    (["--rows", "7"], "--rows takes [4, 16, 32, 64], not [7]"),
    (["--rows", "4"], "kernel_code.json has all rows: name another file with --json"),
])  # fmt: skip
def test_a_part_of_the_rows_does_not_replace_the_evidence(options, refused):
    run = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True, timeout=300)
    assert run.returncode == 2
    assert refused in " ".join(run.stderr.replace("│", " ").split())
