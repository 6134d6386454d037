"""Tables fit 100 columns, or say what they left out."""

import pytest
from synthetic_traces import chosen_trace
from typer.testing import CliRunner

from xshare.cli import app
from xshare.cli.output import WIDTH, number_table, print_table


def test_a_table_that_fits_is_whole(capsys):
    table = number_table("title", "policy", "a", "b")
    table.add_row("native", "1", "2")
    print_table(table, "a")
    assert capsys.readouterr().out.splitlines() == ["title", "policy  a  b", "native  1  2"]


def test_spare_columns_go_first_then_the_last_and_it_says_which(capsys):
    table = number_table("", "policy", "accuracy", "95 %", "change", "95 %", "speed")
    table.add_row("native", *[letter * 24 for letter in "abcde"])
    print_table(table, "accuracy 95 %", "accuracy")
    out = capsys.readouterr().out
    assert "Left out, to fit 100 columns: accuracy, accuracy 95 %; --out FILE keeps them." in out
    header, row = (line for line in out.splitlines() if line.startswith(("policy", "native")))
    assert header.split() == ["policy", "change", "95", "%", "speed"]  # no header is cut
    assert row.split() == ["native", "c" * 24, "d" * 24, "e" * 24]
    table.add_row("k0=1,m=0", *["f" * 60] * 5)
    print_table(table, "accuracy 95 %", "accuracy", kept_in="tune.json has them")
    assert "accuracy, accuracy 95 %, change 95 %, speed; tune.json has them." in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--by-layer"], ["--curve"]])
def test_a_table_with_a_column_a_policy(words, tmp_path):
    chosen_trace().save(tmp_path / "t")
    policies = [word for m in range(9) for word in ("--policy", f"k0=1,m={m}")]
    result = CliRunner().invoke(app, ["replay", str(tmp_path / "t"), "--batches", "2", *words, *policies])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    (note,) = [line for line in lines if line.startswith("Left out, to fit 100 columns: ")]
    assert "k0=1,m=8" in note
    assert all(len(line.rstrip()) <= WIDTH for line in lines if line != note and not line.startswith("This trace"))
