"""What nano is and how it was trained, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from xshare.tasks import ASKED, TRAINED

NANO = Path(__file__).resolve().parents[2] / "nano" / "xshare_nano" / "nano"
DRAFT = NANO.with_name("nano-draft")
VOCABULARY = 3072
END, QUESTION, ANSWER = "<|endoftext|>", "<|question|>", "<|answer|>"
LENGTH = {
    "nano": 512,
    "draft": 512,
    "lab": 1024,
    "lab-draft": 1024,
    "smol": 1024,
    "smol-dense": 1024,
    "smol-cpu": 256,
}  # of a training row

# Where a training row comes from. Prose and code keep the experts apart, tasks can be marked.
MIX = {"tasks": 0.58, "english": 0.10, "french": 0.08, "german": 0.08, "spanish": 0.08, "python": 0.08}
# smol has learnt English already, and reads the other languages badly: fewer questions, more of those.
SMOL_MIX = {"tasks": 0.30, "english": 0.14, "french": 0.14, "german": 0.14, "spanish": 0.14, "python": 0.14}
# On two cores it sees a quarter of a million tokens: too few to learn answers, so it gets none.
CPU_MIX = {"english": 0.2, "french": 0.2, "german": 0.2, "spanish": 0.2, "python": 0.2}
PROSE = {"english": "eng", "french": "fra", "german": "deu", "spanish": "spa"}
HELD_OUT = 12  # one document in HELD_OUT is never trained on

MODEL = {
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 64,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 32,
    "intermediate_size": 256,  # of dense layers, which it has none of
    "norm_topk_prob": True,
}
LAB_MODEL = MODEL | {  # 410 M parameters: for evidence, not shipped
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "moe_intermediate_size": 256,
    "intermediate_size": 512,
}
DRAFT_MODEL = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 384,
}
BOTH = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 2048,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "attention_bias": False,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class Training:
    rows: int  # a step
    rate: float  # peak learning rate
    balance: float = 0.0  # weight of the balance loss
    spread: float = 0.0  # weight of the loss on large router logits
    warmup: int = 200  # steps
    cooldown: float = 0.3  # last share of the steps, in which the rate falls to zero
    decay: float = 0.1  # of weights
    betas: tuple[float, float] = (0.9, 0.95)
    timed: int = 150  # steps after which the number of steps is fitted to the time, if --steps was not given
    parts: int = 1  # in which a step's rows go through the model, one after another
    frozen: tuple[str, ...] = ()  # in the names of weights that stay as they are
    seed: int = 0


TRAINING = {
    "nano": Training(256, 3e-3, balance=0.02, spread=1e-4),
    "draft": Training(256, 4e-3),
    "lab": Training(128, 1e-3, balance=0.02, spread=1e-4),
    "lab-draft": Training(128, 4e-3),
    "smol": Training(32, 6e-4, balance=0.02, spread=1e-4, warmup=50, timed=100, parts=2),
    "smol-dense": Training(32, 6e-4, warmup=50, parts=2),
    "smol-cpu": Training(
        8,
        3e-4,
        balance=0.02,
        spread=1e-4,
        warmup=10,
        timed=50,
        frozen=("embed_tokens", "gate_up_proj"),  # for the memory, and the time
    ),
}

# The longest questions by kind: of nano's first steps, and of lab, which finds nano's too easy.
SHORT = {"sums": 12, "sorting": 10, "backwards": 24, "letters": 48, "divisor": 5, "equation": 7, "legs": 7, "base": 6}
SHORT |= {"ones": 18, "product": 6}
HARD = {
    "sums": 30,
    "sorting": 15,
    "backwards": 62,
    "letters": 124,
    "divisor": 7,
    "equation": 20,
    "legs": 12,
    "base": 10,
}
HARD |= {"ones": 25, "product": 8}
HARDEST = 720  # tokens that lab's answers may take


def sizes(model: str, short: bool = False) -> dict[str, range]:
    """The sizes of questions that a model is trained on, by kind."""
    longest = SHORT if short or model.startswith("smol") else HARD if model.startswith("lab") else {}
    return {kind: range(trained[0], longest.get(kind, trained[-1]) + 1) for kind, trained in TRAINED.items()}


def asked_at(model: str) -> dict[str, int]:
    """By kind of question: the size at which the model is asked."""
    return HARD if model.startswith("lab") else SHORT if model.startswith("smol") else ASKED


def mix(model: str) -> dict[str, float]:
    if model == "smol-cpu":
        return CPU_MIX
    return SMOL_MIX if model.startswith("smol") else MIX
