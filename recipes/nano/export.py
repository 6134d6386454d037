"""Put what train.py wrote into the package: both models, the tokenizer beside each, checksums, and the log.

python recipes/nano/export.py OUT
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from settings import DRAFT, NANO

from xshare.models import write_sums

HERE = Path(__file__).resolve().parent
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def main() -> None:
    out = Path(sys.argv[1])
    for name, folder in (("nano", NANO), ("draft", DRAFT)):
        if not (out / name / "config.json").is_file():
            raise SystemExit(f"{out / name} holds no model: run train.py --model {name} first")
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.safetensors"):
            old.unlink()
        for file in (out / name).iterdir():
            shutil.copyfile(file, folder / file.name)
        for file in TOKENIZER:
            if folder != NANO:
                shutil.copyfile(NANO / file, folder / file)
        write_sums(folder)
        shutil.copyfile(out / f"log-{name}.jsonl", HERE / f"log-{name}.jsonl")
        shutil.copyfile(out / f"evaluation-{name}.json", HERE / f"evaluation-{name}.json")
        print(f"{folder}: {sum(file.stat().st_size for file in folder.iterdir()) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
