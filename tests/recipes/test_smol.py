"""The recipe of smol at a tiny size: its file is read, the mixture begins as the dense model, and it trains."""

import importlib
import json
import lzma
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_recipe import SMALL_LIBRARY
from typer import Typer
from typer.testing import CliRunner

transformers = pytest.importorskip("transformers")

RECIPES = Path(__file__).parents[2] / "recipes"
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = "A sentence of some words, and another one of more. "


@pytest.fixture
def recipe(monkeypatch):
    """A function from a script's name to its module."""
    for folder in ("nano", "smol"):
        monkeypatch.syspath_prepend(str(RECIPES / folder))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    before = set(sys.modules)
    precision = torch.get_float32_matmul_precision()  # training asks for another
    yield importlib.import_module
    torch.set_float32_matmul_precision(precision)
    for name in ("dense", "upcycle", "padded"):  # names that others could have too
        if name not in before:
            sys.modules.pop(name, None)


def dense_model(vocabulary=3072, seed=0):
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        **SIZES, num_key_value_heads=2, head_dim=8, vocab_size=vocabulary, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=0, pad_token_id=0, rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        initializer_range=0.2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


@torch.inference_mode()
def logits(model, ids):
    return model(input_ids=ids).logits


TEXTS = torch.randint(0, 3072, (12, 64), generator=torch.Generator().manual_seed(1))


def divergence(dense, model, ids):
    """KL of the dense model's next token from the mixture's, and from a model's that has learnt nothing."""
    p, q = (logits(model, ids).log_softmax(-1) for model in (dense, model))
    none = torch.zeros_like(p).log_softmax(-1)
    return [float((p.exp() * (p - other)).sum(-1).mean()) for other in (q, none)]


def test_a_mixture_begins_near_the_dense_model(recipe):
    upcycle, dense, lines = recipe("upcycle"), dense_model(), []
    mixture = upcycle.upcycled(dense, upcycle.Shape(), TEXTS, lines.append).eval()
    assert [line.split(":")[0] for line in lines] == ["layer 0", "layer 1"]
    chosen = []
    mixture.model.layers[0].mlp.gate.register_forward_hook(lambda _, inputs, out: chosen.append(out[1:]))
    kl, none = divergence(dense, mixture, TEXTS)
    assert kl < 0.2 * none
    weights, ids = chosen[0]
    assert len(ids.unique()) == upcycle.Shape.experts  # no expert is left without tokens
    assert weights.float().amax(-1).mean() == pytest.approx(upcycle.Shape.first, abs=0.01)


def test_one_expert_with_all_neurons_is_the_dense_model(recipe):
    upcycle, dense = recipe("upcycle"), dense_model()
    mixture = upcycle.upcycled(dense, upcycle.Shape(experts=1, top_k=1), TEXTS, lambda _: None).eval()
    other = TEXTS.flip(1)
    torch.testing.assert_close(logits(mixture, other), logits(dense, other), rtol=1e-3, atol=1e-3)


def test_a_fit_is_ridge_regression(recipe):
    """Of all experts together, against the plain normal equations of all tokens."""
    torch.manual_seed(0)
    ids = torch.stack([torch.randperm(5)[:2] for _ in range(90)])  # [tokens, k]
    own = [(ids == expert).any(-1).nonzero().squeeze(-1) for expert in range(5)]
    features = [torch.randn(len(tokens), 3) for tokens in own]
    wanted, before = torch.randn(90, 4), torch.randn(15, 4)
    whole = torch.zeros(90, 15)
    for expert, (tokens, rows) in enumerate(zip(own, features, strict=True)):
        whole[tokens, 3 * expert : 3 * expert + 3] = rows
    gram = whole.T @ whole
    strength = 0.1 * gram.diagonal().mean() * torch.eye(15)
    expected = torch.linalg.solve(gram + strength, whole.T @ wanted + strength @ before)
    torch.testing.assert_close(before + recipe("upcycle").fit(features, own, wanted, before, 0.1), expected)


@pytest.mark.parametrize("tokens", [1, 7, 300])
def test_experts_filled_up_compute_the_same(recipe, tokens):
    """Outputs and gradients, also where experts have no tokens."""
    torch.manual_seed(0)
    experts = (
        recipe("upcycle").upcycled(dense_model(), recipe("upcycle").Shape(), TEXTS, str).model.layers[0].mlp.experts
    )
    hidden = torch.randn(tokens, 32, requires_grad=True)
    weights, ids = torch.randn(tokens, 32).softmax(-1).topk(4)
    results = []
    for way in (type(experts).forward.__wrapped__, recipe("padded").padded_mm):
        experts.zero_grad()
        hidden.grad = None
        out = way(experts, hidden, ids, weights)
        out.square().sum().backward()
        results.append([out, hidden.grad, experts.down_proj.grad.clone(), experts.gate_up_proj.grad.clone()])
    torch.testing.assert_close(*results)


def paired(weight, heads):
    """Rows as GGUF has them: the two halves of a head in turn."""
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def write_gguf(path, model):
    gguf = pytest.importorskip("gguf")
    config, writer = model.config, gguf.GGUFWriter(path, "llama")
    tokens = ["<|endoftext|>", "<reponame>", "<gh_stars>", *"abc", "Ġ", "ab", "Ġab"]
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(128)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * 6)
    writer.add_token_merges(["a b", "Ġ ab"])
    dense = importlib.import_module("dense")
    theirs = {name: f"blk.{{}}.{kind}.weight" for kind, name in dense.LAYER.items()}
    whole = {f"{name}.weight": f"{kind}.weight" for kind, name in dense.WHOLE.items()}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        if name not in whole:
            _, _, number, *rest, _ = name.split(".")
            if rest[-1] in ("q_proj", "k_proj"):
                tensor = paired(tensor, config.num_attention_heads if rest[-1] == "q_proj" else 2)
            whole[name] = theirs[".".join(rest)].format(number)
        writer.add_tensor(whole[name], tensor.numpy())
    for step in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close"):
        getattr(writer, step)()


def test_the_packages_file_is_read(recipe, tmp_path):
    dense, model = recipe("dense"), dense_model(vocabulary=9)
    write_gguf(tmp_path / "small.gguf", model)
    dense.convert(tmp_path / "small.gguf", tmp_path / "dense")
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "dense", dtype=torch.float32)
    ids = torch.arange(9).unsqueeze(0)
    for weight in model.parameters():
        weight.data = weight.data.to(torch.bfloat16).float()
    torch.testing.assert_close(logits(read, ids), logits(model, ids))
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "dense")
    assert words("<|question|>ab ab<|answer|>c").input_ids == [1, 7, 8, 2, 5]
    assert words.eos_token_id == 0


def test_it_is_made_and_trained(recipe, tmp_path, monkeypatch):
    nano = importlib.import_module("xshare.models").folder("nano")
    start, out, library = tmp_path / "dense", tmp_path / "out", tmp_path / "library"
    dense_model().save_pretrained(start)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (start / name).write_text((nano / name).read_text())
    library.mkdir()
    (library / "long.py").write_text("\n".join(f"value_{i} = {i}" for i in range(400)))
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "sitecustomize.py").write_text(SMALL_LIBRARY.format(folder=str(library)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "first"), prepend=":")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(library))
    for language in ("eng", "fra", "deu", "spa"):
        with lzma.open(tmp_path / f"eltec_{language}.txt.xz", "wt") as file:
            file.write("\n<|endoftext|>\n".join(f"{number} " + TEXT * 400 for number in range(14)))

    def run(script, *words):
        app = Typer()
        app.command()(recipe(script).main)
        return CliRunner().invoke(app, [str(word) for word in words])

    upcycled = run("upcycle", tmp_path, start, tmp_path / "start", "--rows", "2", "--length", "32")
    assert upcycled.exit_code == 0, upcycled.output
    options = [tmp_path, "--out", out, "--model", "smol", "--rows", "2", "--workers", "1", "--questions", "0"]
    ended = run("train", *options, "--start", tmp_path / "start", "--steps", 2)
    assert ended.exit_code == 0, ended.output
    config = json.loads((out / "smol" / "config.json").read_text())
    assert (config["model_type"], config["num_local_experts"], config["num_experts_per_tok"]) == ("mixtral", 32, 4)
    assert (out / "smol" / "tokenizer.json").is_file()
    last = json.loads((out / "log-smol.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 2
    assert 0.75 < last["without_last"] < 1  # the last of four experts weighs least
    assert (out / "checkpoint-smol.safetensors").is_file()
    (out / "checkpoint-smol.safetensors").unlink()
    # As many steps as fit: their number is chosen after some of them, or after half of the time if they are slower.
    for timed, seconds in ((100, 2), (5, 8)):
        monkeypatch.setattr(recipe("train"), "EVERY", timed)
        settings = replace(recipe("train").TRAINING["smol"], timed=timed)
        monkeypatch.setitem(recipe("train").TRAINING, "smol", settings)
        ended = run("train", *options, "--start", tmp_path / "start", "--seconds", seconds, "--no-keep")
        assert ended.exit_code == 0, ended.output
        fit = [int(steps) for steps in re.findall(r"^(\d+) steps fit$", ended.output, flags=re.MULTILINE)]
        assert 2 <= fit[-1] <= fit[0] < 100
        assert json.loads((out / "log-smol.jsonl").read_text().splitlines()[-1])["step"] == fit[-1]
    assert not (out / "checkpoint-smol.safetensors").is_file()
    # On a CPU in bfloat16: what neurons read stays as it is.
    options[options.index("smol")] = "smol-cpu"
    ended = run("train", *options, "--start", tmp_path / "start", "--steps", 12, "--bfloat16", "--no-keep")
    assert ended.exit_code == 0, ended.output
    before, after = (load_file(folder / "model.safetensors") for folder in (tmp_path / "start", out / "smol-cpu"))
    kept = {name for name, weight in before.items() if after[name].equal(weight)}
    inner = [name for name in before if "w1" in name or "w3" in name or "gate_up" in name]
    assert inner
    assert kept.issuperset(inner)
    assert any("w2" in name or "down_proj" in name for name in before.keys() - kept)
    refused = run("train", *options, "--steps", 1)
    assert "say where it --start" in refused.output
