"""A copy of a bundled model with an output layer of its own: SGLang does not tie the output layer of Qwen3-MoE models
to the embedding, and would decode with zeros."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
SHARD, INDEX = "lm_head.safetensors", "model.safetensors.index.json"


def write_untied_copy(folder: Path, into: Path) -> Path:
    """Write a copy to the folder `into`: links to the unchanged files of `folder`, and new files for the rest."""
    into.mkdir(parents=True, exist_ok=True)
    changed = ("config.json", INDEX)
    for file in folder.iterdir():
        if file.name not in changed and file.is_file():
            (into / file.name).symlink_to(file)
    index = json.loads((folder / INDEX).read_text())
    with safe_open(folder / index["weight_map"][EMBEDDING], "pt") as opened:
        save_file({HEAD: opened.get_tensor(EMBEDDING)}, into / SHARD, metadata={"format": "pt"})
    index["weight_map"][HEAD] = SHARD
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": False}
    for name, content in zip(changed, (config, index), strict=True):
        (into / name).write_text(json.dumps(content, indent=2))
    return into
