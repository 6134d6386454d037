import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from xshare.engines.serving.settings import SettingsError
from xshare.engines.vllm.settings import settings_of
from xshare.errors import PolicyError
from xshare.policy import Policy
from xshare.profile import Profile, ProfileError, model_hash, moe_layers, read_profile
from xshare.results import sha256

CONFIG = {"model_type": "qwen3_moe", "num_hidden_layers": 2, "hidden_size": 64, "num_experts": 8, "vocab_size": 99}
GOOD = {"model": "toy", "config": model_hash(CONFIG), "policy": "k0=1,m=4", "measured": {}, "versions": {}}


def test_written_and_read_again(tmp_path):
    profile = Profile(**GOOD, budgets=[1, 2], format=2)
    profile.save(tmp_path / "p.yaml")
    assert read_profile(tmp_path / "p.yaml") == profile
    assert read_profile(tmp_path / "p.yaml").policy == "k0=1,m=4"


@pytest.mark.parametrize(
    ("before", "today"), [("k0=1,m=4", "k0=1,m=4,score=full"), ("k0=1,m=4,score=topk", "k0=1,m=4")]
)
def test_a_policy_of_before_keeps_its_score(tmp_path, before, today):
    """Without a format: when a policy that named no score summed all of them."""
    (tmp_path / "old.yaml").write_text(yaml.safe_dump({"version": 1, **GOOD, "policy": before}))
    read_profile(tmp_path / "old.yaml").save(tmp_path / "again.yaml")
    for name in ("old.yaml", "again.yaml"):
        assert read_profile(tmp_path / name).policy_on([0]) == Policy.parse(today)


def test_budgets_from_before_go_to_the_models_own_layers(tmp_path):
    (tmp_path / "old.yaml").write_text(yaml.safe_dump({"version": 1, **GOOD, "budgets": [1, 2]}))
    assert str(read_profile(tmp_path / "old.yaml").policy_on([3, 4])) == "k0=1,m=4,ml=3:1/4:2,score=full"
    by_layer = Profile(**(GOOD | {"policy": "k0=1,ml=3:1"}), format=2)
    by_layer.save(tmp_path / "new.yaml")
    assert "budgets" not in (tmp_path / "new.yaml").read_text()
    assert read_profile(tmp_path / "new.yaml").policy_on([3, 4]) == Policy(warmup=1, layer_budgets={3: 1})


def test_a_model_is_known_by_its_facts_in_either_form():
    assert model_hash(CONFIG) == model_hash(SimpleNamespace(**CONFIG)) == model_hash(CONFIG | {"dtype": "bfloat16"})
    assert model_hash(CONFIG) != model_hash(CONFIG | {"num_experts": 16})
    Profile(**GOOD).check_model(CONFIG)
    with pytest.raises(ProfileError, match=r"made for toy \(configuration [0-9a-f]{12}\)"):
        Profile(**GOOD).check_model(CONFIG | {"hidden_size": 128})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[1, 2", "is not YAML"),
        ("7", "must hold the fields of a profile"),
        (json.dumps(GOOD | {"budget": 3}), "budget: extra inputs are not permitted"),
        (json.dumps(GOOD | {"version": 2}), "version: input should be 1"),
        (json.dumps({key: value for key, value in GOOD.items() if key != "policy"}), "policy: field required"),
        (json.dumps(GOOD | {"budgets": ["many"]}), r"budgets.0: input should be a valid integer"),
        (json.dumps(GOOD | {"budgets": ["8"]}), r"budgets.0: input should be a valid integer"),
        (json.dumps(GOOD | {"budgets": [-1]}), r"budgets.0: input should be greater than or equal to 0"),
        (json.dumps(GOOD | {"budgets": []}), "budgets: list should have at least 1 item"),
        (json.dumps(GOOD | {"policy": "native"}), "policy must be one of XShare's own, not native"),
        pytest.param("[" * 10_000, "is not YAML: ", id="deep list"),
        pytest.param("a: " + "{b: " * 10_000, "is not YAML: ", id="deep mapping"),
        ("day: 2024-13-45", "is not YAML: month must be in 1..12"),
        pytest.param("model: " + "9" * 5000, "is not YAML: ", id="digits"),
        (json.dumps(GOOD | {"budgets": [10**30]}), "budgets.0: input should be less than or equal to 2147483647"),
        (
            json.dumps(GOOD | {"measured": {"batch": 10**9}}),
            "measured.batch must be a whole number from 1 to 65536, not 1000000000",
        ),
        (json.dumps(GOOD | {"measured": {"batch": 0}}), "measured.batch must be a whole number from 1 to 65536, not 0"),
        (json.dumps(GOOD | {"measured": {"batch": "16"}}), "measured.batch must be a whole number from 1 to 65536"),
        (json.dumps(GOOD | {"measured": {"batch": True}}), "measured.batch must be a whole number from 1 to 65536"),
        (json.dumps(GOOD | {"measured": {"drafts": -1}}), "measured.drafts must be a whole number from 0 to 65536"),
        ("{1: 2}", "must name its fields by words"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(tmp_path, text, sentence):
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(ProfileError, match=sentence):
        read_profile(tmp_path / "p.yaml")


def test_paths_that_no_file_can_have(tmp_path):
    for path in (Path("a" * 5000), Path("a\0b"), tmp_path):
        with pytest.raises(ProfileError, match="does not exist or is not a file") as caught:
            read_profile(path)
        assert len(str(caught.value)) < 450
    with (tmp_path / "huge.yaml").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ProfileError, match="is larger than 1 MiB, which none is"):
        read_profile(tmp_path / "huge.yaml")


@pytest.mark.parametrize(
    ("config", "numbers"),
    [
        (CONFIG, [0, 1]),
        (CONFIG | {"num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]}, [1, 5]),
        ({"model_type": "gpt_oss", "num_hidden_layers": 3}, [0, 1, 2]),
        ({"model_type": "another", "num_hidden_layers": 3}, None),
        ({}, None),
        (None, None),
    ],
)
def test_which_layers_have_experts_is_known_before_a_model_is_loaded(config, numbers):
    assert moe_layers(config) == numbers


def weighed(folder, name="stairs.json"):
    """A profile beside a staircase that it names."""
    (folder / "stairs.json").write_text("what was measured")
    profile = Profile(**GOOD, format=2, cost={"file": str(name), "sha256": sha256(folder / "stairs.json")})
    profile.save(folder / "p.yaml")
    return {"profile": str(folder / "p.yaml")}


@pytest.mark.parametrize("absolute", [False, True])
def test_a_server_reads_the_staircase_that_a_profile_names(tmp_path, absolute):
    options = weighed(tmp_path, tmp_path / "stairs.json" if absolute else "stairs.json")
    assert read_profile(tmp_path / "p.yaml").cost.sha256 in (tmp_path / "p.yaml").read_text()
    assert settings_of({"xshare": options}).cost == str(tmp_path / "stairs.json")
    with pytest.raises(SettingsError, match="profile in xshare names the staircase itself: leave cost out"):
        settings_of({"xshare": options | {"cost": "other.json"}})
    (tmp_path / "stairs.json").write_text("measured again")
    with pytest.raises(ProfileError, match=r"is another than the one that profile '.*p.yaml' was tuned with"):
        settings_of({"xshare": options})
    (tmp_path / "stairs.json").unlink()
    with pytest.raises(ProfileError, match=r"needs the staircase '.*stairs.json', which does not exist"):
        settings_of({"xshare": options})


def test_without_a_staircase_a_profile_says_nothing_of_one(tmp_path):
    Profile(**GOOD, format=2).save(tmp_path / "p.yaml")
    assert "cost" not in (tmp_path / "p.yaml").read_text()
    assert settings_of({"xshare": {"profile": str(tmp_path / "p.yaml")}}).cost is None
    options = {"profile": str(tmp_path / "p.yaml"), "cost": "s.json"}
    assert settings_of({"xshare": options}).cost == "s.json"


def test_a_missing_file_and_a_bad_policy(tmp_path):
    with pytest.raises(ProfileError, match="does not exist"):
        read_profile(tmp_path / "none.yaml")
    (tmp_path / "p.yaml").write_text(json.dumps(GOOD | {"policy": "k0=x"}))
    with pytest.raises(PolicyError):
        read_profile(tmp_path / "p.yaml")


@pytest.mark.parametrize(
    ("measured", "gates", "rows"),
    [
        ({"batch": 16}, {}, 16),
        ({"batch": 16, "drafts": 3}, {}, 64),
        ({"batch": 16}, {"max_rows": 64}, 64),
        ({"batch": 900}, {}, 256),
        ({}, {}, 256),
    ],
)
def test_it_acts_on_steps_as_large_as_those_it_was_measured_at(tmp_path, measured, gates, rows):
    Profile(**GOOD | {"measured": measured}).save(tmp_path / "p.yaml")
    options = {"profile": str(tmp_path / "p.yaml")} | ({"gates": gates} if gates else {})
    applied = settings_of({"xshare": options}).gates
    assert applied.max_rows == rows
    assert applied.max_requests == (None if gates else measured.get("batch"))
