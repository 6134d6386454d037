"""Put what train.py wrote into the package: both models, the tokenizer beside each, checksums, and the log.

python recipes/nano/export.py OUT
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from settings import DRAFT, NANO

from xshare.models import write_sums

HERE = Path(__file__).resolve().parent
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def main() -> None:
    out = Path(sys.argv[1])
    for name in ("nano", "draft"):  # all of it, before anything is replaced
        for needed in (f"{name}/config.json", f"log-{name}.jsonl", f"evaluation-{name}.json"):
            if not (out / needed).is_file():
                raise SystemExit(f"{out / needed} is missing: run train.py --model {name} first")
    for name, folder in (("nano", NANO), ("draft", DRAFT)):
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.safetensors"):
            old.unlink()
        for file in (out / name).iterdir():
            shutil.copyfile(file, folder / file.name)
        for file in TOKENIZER:
            if folder != NANO:
                shutil.copyfile(NANO / file, folder / file)
        config = json.loads((folder / "config.json").read_text())
        if "num_local_experts" in config:  # the name that Qwen3-MoE's own checkpoints have for it
            config["num_experts"] = config["num_local_experts"]
            (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        write_sums(folder)
        shutil.copyfile(out / f"log-{name}.jsonl", HERE / f"log-{name}.jsonl")
        shutil.copyfile(out / f"evaluation-{name}.json", HERE / f"evaluation-{name}.json")
        print(f"{folder}: {sum(file.stat().st_size for file in folder.iterdir()) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
