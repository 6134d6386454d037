"""The Python of docs/transformers.md runs as it stands there."""

import re
from pathlib import Path

import torch
from tiny_models import prompts

GUIDE = Path(__file__).parents[3] / "docs" / "transformers.md"


def test_the_guides_python_runs(tiny, capsys):
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 4
    model, tokens = tiny("qwen3"), prompts(4)
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    exec("\n".join(blocks), {"model": model, "inputs": inputs, "tokens": tokens})
    active, native = map(float, capsys.readouterr().out.split(" of "))
    assert 0 < active < native
    assert "_xshare" not in vars(model.model)
