"""What a trained model can do: accuracy on held-out questions by kind and size, loss on held-out text by domain."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from feed import as_batch, prose, tokenizer
from settings import ANSWER, NANO, PROSE, QUESTION, sizes
from settings import asked as asked_at

from xshare.quality.files import nano_prompt
from xshare.quality.tasks import KINDS, held_out_questions, is_right

BATCH = 512


@torch.inference_mode()
def evaluate(model: Any, corpus: Path, device: str, questions: int, name: str = "nano") -> dict[str, Any]:
    model.eval()
    return {"accuracy": accuracy(model, device, questions, name), "loss": losses(model, corpus, device)}


def accuracy(model: Any, device: str, questions: int, name: str) -> dict[str, dict[str, float]]:
    from transformers import AutoTokenizer

    words = AutoTokenizer.from_pretrained(NANO)
    asked = []
    for kind in KINDS:
        trained, usual = sizes(name)[kind], asked_at(name)[kind]
        for size in sorted({trained[0], trained[-1], usual, *trained[len(trained) // 2 :: max(1, len(trained) // 6)]}):
            try:
                asked += [(kind, size, question) for question in held_out_questions(kind, questions, size=size)]
            except ValueError:  # too few of them held out
                continue
    right: dict[str, dict[str, list[bool]]] = {}
    began = time.monotonic()
    for i in range(0, len(asked), BATCH):
        some = asked[i : i + BATCH]
        given = words([nano_prompt(question) for _, _, question in some], return_tensors="pt", padding=True).to(device)
        given.pop("token_type_ids", None)
        out = model.generate(**given, max_new_tokens=480, do_sample=False)
        texts = words.batch_decode(out[:, given["input_ids"].shape[1] :], skip_special_tokens=True)
        for (kind, size, question), text in zip(some, texts, strict=True):
            right.setdefault(kind, {}).setdefault(str(size), []).append(is_right(question, text))
        print(f"{i + len(some)} of {len(asked)} questions, {time.monotonic() - began:.0f} s", flush=True)
    found = {kind: {size: sum(all_) / len(all_) for size, all_ in by.items()} for kind, by in right.items()}
    for kind, by in found.items():
        print(kind, {size: round(value, 2) for size, value in by.items()}, "asked at", asked_at(name)[kind], flush=True)
    return found


def losses(model: Any, corpus: Path, device: str) -> dict[str, float]:
    found = {}
    special = tokenizer()
    marks = [special.token_to_id(name) for name in (QUESTION, ANSWER)]
    for domain in [*PROSE, "python"]:
        inputs, targets = as_batch(prose(corpus, domain, held=True, most=128).astype("int64"), *marks)
        sums, count = 0.0, 0
        for i in range(0, len(inputs), 32):
            logits = model(input_ids=inputs[i : i + 32].to(device), use_cache=False).logits.float()
            wanted = targets[i : i + 32].to(device)
            sums += float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum"))
            count += wanted.numel()
        found[domain] = sums / count
    print({domain: round(value, 3) for domain, value in found.items()}, flush=True)
    return found
