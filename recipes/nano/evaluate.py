"""What a trained model can do: accuracy on held-out questions by kind and size, loss on held-out text by domain.

    python recipes/nano/evaluate.py CORPUS --out OUT --model nano

train.py ends with it. On a CPU the weights are float32, as the package loads them.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from feed import as_batch, prose, tokenizer
from settings import ANSWER, END, HARDEST, LENGTH, NANO, PROSE, QUESTION, TRAINING, asked_at, sizes

from xshare.engines.transformers.decode import decode
from xshare.quality.task_files import nano_prompt
from xshare.tasks import KINDS, LONGEST, held_out_questions, is_right

BATCH = {"cuda": 1024, "cpu": 128}


@torch.inference_mode()
def evaluate(corpus: Path, out: Path, name: str, questions: int) -> None:
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(out / name, dtype=dtype).to(device).eval()
    folder = out / name if (out / name / "tokenizer.json").is_file() else NANO
    last = json.loads((out / f"log-{name}.jsonl").read_text().splitlines()[-1])
    results = {
        "model": name,
        "steps": last["step"],
        "length": LENGTH[name],
        "settings": vars(TRAINING[name]),
        "questions": questions,
        "device": device,
        "dtype": str(dtype),
        "accuracy": accuracy(model, folder, device, questions, name),
        "loss": losses(model, folder, corpus, LENGTH[name], device),
    }
    (out / f"evaluation-{name}.json").write_text(json.dumps(results, indent=1) + "\n")


def accuracy(model: Any, folder: Path, device: str, questions: int, name: str) -> dict[str, dict[str, float]]:
    from transformers import AutoTokenizer

    words = AutoTokenizer.from_pretrained(folder)
    questions_asked = []
    for kind in KINDS:
        trained = sizes(name)[kind]
        usual = asked_at(name).get(kind, trained[-1])
        among = (1, 2, 3) if name.startswith("lab") else (2,)  # quarters of the way
        for size in sorted({trained[0], *(trained[len(trained) * i // 4] for i in among), trained[-1], usual}):
            try:
                questions_asked += [
                    (kind, size, question) for question in held_out_questions(kind, questions, size=size)
                ]
            except ValueError:  # too few of them held out
                continue
    right: dict[str, dict[str, list[bool]]] = {}
    began = time.monotonic()
    prompts = [words(nano_prompt(question)).input_ids for _, _, question in questions_asked]
    limit = HARDEST if name.startswith("lab") else LONGEST
    decoded = decode(model, prompts, ends=words.eos_token_id, limit=limit, batch=BATCH[device])
    print(f"{len(questions_asked)} questions, {time.monotonic() - began:.0f} s", flush=True)
    for (kind, size, question), text in zip(questions_asked, words.batch_decode(decoded.tokens), strict=True):
        answer_text = text.removesuffix(END)
        right.setdefault(kind, {}).setdefault(str(size), []).append(is_right(question, answer_text))
    shares = {kind: {size: sum(all_) / len(all_) for size, all_ in by.items()} for kind, by in right.items()}
    for kind, by in shares.items():
        print(
            kind,
            {size: round(value, 2) for size, value in by.items()},
            "asked at",
            asked_at(name).get(kind),
            flush=True,
        )
    return shares


def losses(model: Any, folder: Path, corpus: Path, length: int, device: str) -> dict[str, float]:
    by_domain = {}
    special = tokenizer(folder)
    marks = [special.token_to_id(name) for name in (QUESTION, ANSWER)]
    for domain in [*PROSE, "python"]:
        inputs, targets = as_batch(prose(corpus, folder, length, domain, held=True, most=128).astype("int64"), *marks)
        sums, count = 0.0, 0
        for i in range(0, len(inputs), 32):
            logits = model(input_ids=inputs[i : i + 32].to(device), use_cache=False).logits.float()
            expected = targets[i : i + 32].to(device)
            sums += float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), expected.flatten(), reduction="sum"))
            count += expected.numel()
        by_domain[domain] = sums / count
    print({domain: round(value, 3) for domain, value in by_domain.items()}, flush=True)
    return by_domain


def main(
    corpus: Annotated[Path, typer.Argument(help="The folder with eltec_*.txt.xz.")],
    out: Annotated[Path, typer.Option(help="Where train.py wrote.")],
    model: Annotated[str, typer.Option(help="nano, draft, lab, lab-draft, smol or smol-dense.")] = "nano",
    questions: Annotated[int, typer.Option(help="Questions of each kind and size.")] = 32,
) -> None:
    evaluate(corpus, out, model, questions)


if __name__ == "__main__":
    typer.run(main)
