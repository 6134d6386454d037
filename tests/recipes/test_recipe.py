"""The recipe of nano and lab, tried out on a CPU: it trains, goes on from a checkpoint, and asks what it should."""

import json
import lzma
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRAIN = [sys.executable, ROOT / "recipes" / "nano" / "train.py"]
OPTIONS = ["--model", "lab", "--tiny", "--rows", "1", "--workers", "1", "--questions", "0"]


def test_it_trains_and_goes_on(tmp_path):
    for language in ("eng", "fra", "deu", "spa"):
        with lzma.open(tmp_path / f"eltec_{language}.txt.xz", "wt") as file:
            file.write(
                "\n<|endoftext|>\n".join(f"{number} " + "A sentence of some words. " * 400 for number in range(30))
            )
    out, more = tmp_path / "out", ["--resume", "--short-for", "0.001"]
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false"}
    for steps, options in ((2, ["--short"]), (3, more)):
        command = [*TRAIN, tmp_path, "--out", out, *OPTIONS, "--steps", str(steps), *options]
        subprocess.run(command, check=True, env=environment, capture_output=True)
    assert json.loads((out / "log-lab.jsonl").read_text().splitlines()[-1])["step"] == 3
    assert json.loads((out / "lab" / "config.json").read_text())["model_type"] == "qwen3_moe"
    refused = subprocess.run([*TRAIN, tmp_path, "--out", out, *OPTIONS], capture_output=True, text=True)
    assert "say how many --steps" in refused.stderr


def test_lab_is_asked_at_the_largest_size_it_answers_well(tmp_path):
    accuracy = {"sums": {"3": 1.0, "20": 0.8, "30": 0.5}, "sorting": {"4": 0.75}, "legs": {"3": 0.7}}
    (tmp_path / "evaluation.json").write_text(json.dumps({"accuracy": accuracy}))
    command = [sys.executable, ROOT / "recipes" / "lab" / "tasks.py", "2", tmp_path / "evaluation.json"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    asked = [json.loads(line) for line in lines]
    assert [each["kind"] for each in asked] == ["sums", "sums", "sorting", "sorting"]
    assert all(each["question"].count("+") + each["question"].count(" - ") == 19 for each in asked[:2])
