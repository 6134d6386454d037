import json

from typer.testing import CliRunner

from xshare.cli import app


def test_table_verdict_and_file(small, tmp_path):
    path = tmp_path / "doctor.json"
    words = ["doctor", "--engine", "transformers", "--model", str(small), "--engine-args", '{"dtype": "float32"}']
    words += ["--batch", "6", "--tokens", "6", "--repeats", "2", "--prompt-tokens", "8", "--json", str(path)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    before = json.loads(path.read_text())
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 0, again.output
    after = json.loads(path.read_text())
    assert after["samples"] == before["samples"]  # nothing was measured twice
    assert after["rows"] == before["rows"]
    assert "step = " in result.output
    assert "worth it: " in result.output
    found = json.loads(path.read_text())
    assert set(found["provenance"]["law"]) == {"a", "b", "r2"}
    assert found["provenance"]["verdict"] in result.output.replace("\n", " ")
    policies = [row["policy"] for row in found["rows"]]
    assert policies[:3] == ["native", "k0=1,m=16", "k0=0,m=4"]
    assert {row["batch"] for row in found["rows"]} == {1, 3, 6}
    pruned = next(row for row in found["rows"] if row["policy"] == "k0=1,m=0")
    assert pruned["predicted"] is not None
    assert pruned["active"] < pruned["active_native"]
