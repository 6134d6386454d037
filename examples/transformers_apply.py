"""A policy on a Hugging Face model: python examples/transformers_apply.py [FOLDER]

Decodes eight prompts together, natively and under a preset, and says what changed. Without a folder the model is nano.
`generate` follows the policy as it is, until the policy is removed.
"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import xshare
import xshare.models

POLICY = "balanced"  # or "careful", "fast", "k0=2,m=0", ...
folder = sys.argv[1] if len(sys.argv) > 1 else xshare.models.folder("nano")
device = "cuda" if torch.cuda.is_available() else "cpu"
tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32" if device == "cpu" else "auto").to(device).eval()
prompts = [f"<|question|>Compute {number} + 30 - 5<|answer|>" for number in range(11, 19)]  # as nano is asked
inputs = tokenizer(prompts, return_tensors="pt", padding=True, return_token_type_ids=False).to(device)


def answers() -> list[str]:
    tokens = model.generate(**inputs, max_new_tokens=32, do_sample=False)
    return tokenizer.batch_decode(tokens[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


native = answers()
xshare.apply(model, POLICY)
shared = answers()
mean = xshare.stats(model)["mean"]
xshare.remove(model)

print(f"{POLICY}: {mean['experts_active']:.1f} experts per layer and step instead of {mean['experts_native']:.1f}")
print(f"{mean['mass_kept']:.0%} of the routing weight kept, {mean['smallest_kept']:.0%} by the token that keeps least")
print(f"{sum(map(str.__eq__, native, shared))} of {len(prompts)} answers are the same to the letter; the first begins:")
print("   ", shared[0].splitlines()[0])
