import shutil

import pytest
from typer.testing import CliRunner

import xshare.models
from xshare import ModelError
from xshare.cli import app


def test_an_unknown_model_is_refused():
    with pytest.raises(ModelError, match=r"no model 'giga' in the box, only nano and nano-draft"):
        xshare.models.folder("giga")


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (lambda path: (path / "model.safetensors").unlink(), "incomplete: model.safetensors is missing"),
        (lambda path: (path / "SHA256SUMS").unlink(), "has no SHA256SUMS"),
        (lambda path: (path / "model.safetensors").write_bytes(b"0" * 99), "damaged: model.safetensors"),
        (lambda path: (path / "config.json").write_text("{}"), "damaged: config.json"),
    ],
)
def test_damage_is_one_sentence_and_exit_code_2(small, tmp_path, monkeypatch, harm, sentence):
    path = tmp_path / "nano"
    shutil.copytree(small, path)
    harm(path)
    monkeypatch.setattr(xshare.models, "folder", lambda name="nano": path)
    with pytest.raises(ModelError, match=sentence):
        xshare.models.load()
    result = CliRunner().invoke(app, ["demo", "--json", str(tmp_path / "out.json")])
    assert isinstance(result.exception, ModelError)
    assert not (tmp_path / "out.json").exists()
