"""Whatever is in a file or a configuration: it is read, or refused by one sentence, soon and without much memory.

A few examples of each in every run of the tests; XSHARE_FUZZ says how many, and `make fuzz` runs thousands.
"""

import json
import os
import resource
import time

import numpy as np
import pytest
import staircase_files
import yaml
from fuzzed_inputs import altered, other_bytes, text, values
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file
from synthetic_traces import chosen_trace, full_trace

from xshare.cli.output import engine_of
from xshare.cli.replay import _policies
from xshare.engines.vllm.settings import settings_of
from xshare.errors import XShareError
from xshare.policy import FIELD_LETTERS, LETTERS, PRESETS, Policy
from xshare.profile import Profile, model_hash, read_profile
from xshare.quality.task_files import read_tasks
from xshare.report.page import page
from xshare.report.result_files import read_folder
from xshare.results import Results, check_replaceable
from xshare.staircase import read_stairs
from xshare.trace import Trace, import_npz
from xshare.trace.compressed import compress, content_sha256
from xshare.trace.file import HEADER_KEY, TENSORS
from xshare.trace.prompt_file import read_prompts

EXAMPLES = int(os.environ.get("XSHARE_FUZZ", "25"))
SECONDS = 10.0  # of a processor that an input may take
MOST_BYTES = 512 << 20  # that an input may add to what this process holds
LONGEST = 1000  # characters of a sentence


# A folder is made once for all examples of a test: each writes its file anew.
fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


def held():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def read(reader, *args):
    """What the reader returns, or None where it refuses the input; any other error fails the test."""
    begun, before = time.process_time(), held()
    try:
        result = reader(*args)
    except XShareError as error:
        sentence, result = str(error), None
        assert sentence
        assert "\n" not in sentence
        assert len(sentence) < LONGEST
        sentence.encode()  # can be printed
    assert time.process_time() - begun < SECONDS
    assert held() - before < MOST_BYTES
    return result


# Policies and settings

POLICY = {"method": "xshare", "warmup": 1, "batch_budget": 8, "layer_budgets": {"0": 8}, "layer_weights": {"1": 0.5}}
POLICY |= {"coverage": 0.7, "price": 0.1, "power": 2, "fill": "level", "score": "topk", "params": {"beta": 0.5}}
letters = st.sampled_from([*LETTERS, *FIELD_LETTERS, "beta", "k", "drop", "seed", "k9"])
given_values = st.integers(-2, 300).map(str) | st.sampled_from(["nan", "inf", "1e400", "9" * 5000, "1_0"]) | text


@st.composite
def spelled_policies(draw):
    method = draw(st.sampled_from(["", "", "", "oea:", "skip:", "topk:", "random:", "lynx:", "a:"]))
    pairs = draw(st.lists(st.tuples(letters, given_values), max_size=5))
    return method + ",".join(f"{letter}={value}" for letter, value in pairs)


def served(policy):
    """Use a policy that was read: write it, read it again, split it by layer."""
    assert Policy.parse(str(policy)) == policy
    assert Policy.of(policy.to_dict()) == policy
    read(policy.by_layer, [0, 1, 2])


@fuzzed
@given(spelled_policies() | text | st.sampled_from([*PRESETS]))
def test_a_policy_by_its_string(spelled):
    if (policy := read(Policy.parse, spelled)) is not None:
        served(policy)


@fuzzed
@given(altered(POLICY) | altered({"warmup": 1}) | values)
def test_a_policy_by_its_fields(fields):
    if (policy := read(Policy.of, fields)) is not None:
        served(policy)


SETTINGS = {"policy": "k0=1,m=8", "gates": {"min_rows": 2, "max_rows": 16, "max_requests": 8, "bypass": False}}
SETTINGS |= {"metrics": {"on": True, "every": 4, "interval": 1.0}, "strict": True, "layers": [0, 1], "live": "any"}
SETTINGS |= {"experiment": False, "protect": True, "default": "exact", "one_launch": True, "cost": "stairs.json"}


@fuzzed
@given(altered(SETTINGS) | altered({"profile": "a.yaml"}) | altered(POLICY | {"strict": True}) | values)
def test_any_settings_are_read_or_refused(options):
    read(settings_of, {"xshare": options})


# Files


def encoded(value):
    """JSON as a careless program writes it: with NaN, and with half of a surrogate pair, escaped."""
    return json.dumps(value).encode()


PROFILE = {"version": 1, "format": 2, "model": "toy", "config": model_hash({}), "policy": "k0=1,m=4", "budgets": [1, 2]}
PROFILE |= {"measured": {"batch": 16, "drafts": 3, "gain": 1.2}, "versions": {"xshare": "0.1"}}
PROFILE |= {"cost": {"file": "stairs.json", "sha256": "0" * 64}}


@fuzzed
@given(altered(PROFILE).map(encoded) | other_bytes(yaml.safe_dump(PROFILE).encode()) | st.binary(max_size=60))
def test_any_profile_is_read_or_refused(tmp_path, content):
    (tmp_path / "p.yaml").write_bytes(content)
    (tmp_path / "stairs.json").write_text("{}")
    profile = read(read_profile, tmp_path / "p.yaml")
    read(settings_of, {"xshare": {"profile": str(tmp_path / "p.yaml")}})
    if profile is not None:
        assert isinstance(profile, Profile)
        read(profile.policy_on, [0, 1])
        read(profile.staircase_path, tmp_path / "p.yaml")
        read(profile.check_model, {})


WHERE = {"engine": "vllm", "device": "cpu", "dtype": "float32", "experts": 8, "top_k": 2, "layers": 2}


@pytest.fixture(scope="module")
def stairs(tmp_path_factory):
    path = staircase_files.write(tmp_path_factory.mktemp("stairs") / "s.json", WHERE, {1: (3, 5), 4: (4, 6)})
    return json.loads(path.read_text())


@fuzzed
@given(data=st.data())
def test_any_staircase_is_read_or_refused(tmp_path, stairs, data):
    good = json.dumps(stairs).encode()
    (tmp_path / "s.json").write_bytes(data.draw(altered(stairs).map(encoded) | other_bytes(good) | st.binary()))
    if (staircase := read(read_stairs, tmp_path / "s.json")) is not None:
        assert staircase.costs.shape == (len(staircase.rows), staircase.where["experts"] + 1)
        assert bool(staircase.costs.isfinite().all())
        staircase.table_for(3)
        read(staircase.check_conditions, WHERE)


ROW = {"policy": "k0=1,m=8", "batch": 4, "active": 20.5, "active_native": 25.0, "mass": 0.97, "top1_kept": 1.0}
SPEED = {"policy": "native", "ratio": 1.2, "ratio_low": 1.1, "ratio_high": 1.3, "tokens_per_s": 10.0, "repeats": 4}
QUALITY = {"policy": "native", "accuracy": 0.9, "accuracy_low": 0.8, "accuracy_high": 0.95, "kl": 0.01, "otps": 11.0}
STAMP = {"argv": ["xshare", "bench"], "time": "2026-11-17T10:00:00+00:00", "versions": {"python": "3.11"}, "git": None}
RESULT = {"provenance": STAMP | {"fingerprint": {"engine": "vllm", "tokens": 8}, "model": "nano"}}
RESULT |= {"rows": [ROW, ROW | {"policy": "native"}, SPEED, QUALITY, QUALITY | {"policy": "rho=0.7"}]}
RESULT |= {"samples": [{"policy": "native", "stamp": 1, "ms": 2.0}], "stamps": [STAMP]}


@fuzzed
@given(altered(RESULT).map(encoded) | other_bytes(encoded(RESULT)) | st.binary(max_size=60))
def test_any_result_file_is_read_or_refused(tmp_path, content):
    path = tmp_path / "r.json"
    path.write_bytes(content)
    read(lambda: page(*read_folder(tmp_path), title="all"))
    read(check_replaceable, path)
    read(engine_of, path)
    if (earlier := read(Results, path, {"engine": "vllm", "tokens": 8}, {})) is not None:
        read(earlier.write)


def tensors_of(trace):
    return {name: tensor for name in TENSORS if (tensor := getattr(trace, name)) is not None}


TRACES = {"chosen": chosen_trace(layers=1), "full": full_trace(layers=1)}
HEADERS = {name: json.loads(trace.header.model_dump_json()) for name, trace in TRACES.items()}
WHOLE = {
    name: save(tensors_of(trace), metadata={HEADER_KEY: trace.header.model_dump_json()})
    for name, trace in TRACES.items()
}


def replayed(trace):
    assert trace.tokens == len(trace.experts if trace.logits is None else trace.logits)
    trace.router().check(trace.header.num_experts)


@fuzzed
@given(name=st.sampled_from([*TRACES]), data=st.data())
def test_a_trace_with_another_header(tmp_path, name, data):
    header = data.draw(altered(HEADERS[name]))
    tensors = tensors_of(TRACES[name])
    if data.draw(st.booleans()):  # one that does not belong here, or is not there
        tensors.pop(data.draw(st.sampled_from([*tensors])))
    save_file(tensors, tmp_path / "t.trace", {HEADER_KEY: json.dumps(header)})
    if (trace := read(Trace.load, tmp_path / "t.trace")) is not None:
        replayed(trace)


@fuzzed
@given(name=st.sampled_from([*TRACES]), data=st.data())
def test_a_trace_with_other_bytes(tmp_path, name, data):
    (tmp_path / "t.trace").write_bytes(data.draw(other_bytes(WHOLE[name]) | st.binary(max_size=60)))
    if (trace := read(Trace.load, tmp_path / "t.trace")) is not None:
        replayed(trace)


@fuzzed
@given(name=st.sampled_from([*TRACES]), data=st.data())
def test_a_compressed_trace_with_other_bytes(tmp_path, name, data):
    inner = data.draw(st.just(WHOLE[name]) | other_bytes(WHOLE[name]))
    (tmp_path / "t.trace.xz").write_bytes(
        data.draw(other_bytes(compress(inner)) | st.just(compress(inner)) | st.binary())
    )
    if (trace := read(Trace.load, tmp_path / "t.trace.xz")) is not None:
        replayed(trace)
    read(content_sha256, tmp_path / "t.trace.xz")


@fuzzed
@given(data=st.data())
def test_an_npz_file_with_other_bytes(tmp_path, data):
    trace = TRACES["chosen"]
    arrays = {"experts": trace.experts.numpy(), "weights": trace.weights.numpy(), "lengths": trace.lengths.numpy()}
    np.savez(tmp_path / "good.npz", **arrays, domain=np.array(["a"] * len(trace.lengths)))
    (tmp_path / "n.npz").write_bytes(data.draw(other_bytes((tmp_path / "good.npz").read_bytes())))
    read(import_npz, tmp_path / "n.npz", "made-up", 12)


LINES = [{"question": "6 * 7?", "answer": "42", "compare": "number", "kind": "sums"}, {"prompt": "a", "domain": "b"}]


@fuzzed
@given(st.lists(altered(LINES[0]) | altered(LINES[1]) | st.sampled_from(LINES), max_size=3))
def test_tasks_and_prompts(tmp_path, lines):
    (tmp_path / "l.jsonl").write_bytes(b"\n".join(map(encoded, lines)))
    for reader in (read_tasks, read_prompts):
        for entry in read(reader, tmp_path / "l.jsonl") or ():
            if reader is read_tasks:
                entry.is_right("the answer is 42")


@fuzzed
@given(altered([POLICY, "k0=1,m=8", {"warmup": 1}]).map(encoded) | other_bytes(b"- k0=1,m=8\n- {warmup: 1}\n"))
def test_a_file_of_policies(tmp_path, content):
    (tmp_path / "p.yaml").write_bytes(content)
    read(_policies, [], tmp_path / "p.yaml")
