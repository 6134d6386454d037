"""Which files the report knows, what it says of the others, and its command."""

import json

import pytest
import small_result_files as results
from report_pages import EVIDENCE, report_page, sections
from small_result_files import write

from xshare.cli import main
from xshare.report.labels import policy_label
from xshare.report.result_files import read_folder
from xshare.results.columns import interval_of, number

CHECKS = [{"check": "attached", "passed": True, "detail": ""}]  # no plot, which takes long


@pytest.fixture
def report(monkeypatch, capsys):
    """Run the command: -> exit code, standard output, standard error."""

    def run(*words):
        monkeypatch.setattr("sys.argv", ["xshare", "report", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        out = capsys.readouterr()
        return end.value.code or 0, out.out, out.err

    return run


def test_files_are_known_by_their_columns(tmp_path):
    forms = {
        "speed and quality": results.demo_rows(),
        "replay of a trace": results.replay_rows(),
        "speed": results.speed_rows(),
        "quality": results.quality_rows(),
        "active experts against batch size": results.curve_rows(),
        "checks": CHECKS,
    }
    for place, rows in enumerate(forms.values()):
        write(tmp_path, f"{place}", rows)
    files, notes = read_folder(tmp_path)
    assert [file.kind for file in files] == list(forms)
    assert notes == []


def test_every_file_of_the_evidence_is_known():
    files, notes = read_folder(EVIDENCE)
    assert len(files) == len(list(EVIDENCE.glob("*.json")))
    assert notes == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not JSON"),
        (b'{"provenance": {', "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b"[1, 2]", "not a result file"),
        (b'{"rows": []}', "not a result file"),
        (b'{"provenance": {}, "rows": [1]}', "not a result file"),
        (b'{"provenance": [], "rows": [{"a": 1}]}', "not a result file"),
        (b'{"provenance": {}, "rows": []}', "without rows"),
        (b'{"provenance": {}, "rows": [{}]}', "without rows"),
    ],
)
def test_what_is_no_result_is_one_sentence_and_the_rest_is_shown(content, says, tmp_path, report):
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "odd.json").write_bytes(content)
    code, _, err = report(folder, "--out", tmp_path / "p.html")
    assert code == 2  # nothing else is there
    assert not (tmp_path / "p.html").exists()
    write(folder, "good.json", CHECKS)
    code, out, err = report(folder, "--out", tmp_path / "p.html")
    assert code == 0
    assert "1 result file" in out
    [line] = err.splitlines()
    assert line.startswith("note: odd.json: ")
    assert says in line
    assert says in (tmp_path / "p.html").read_text()


def test_unknown_columns_are_named_and_shown_as_a_table(tmp_path):
    write(tmp_path, "x.json", [{"colour": "red", "size": 4}, {"colour": "blue", "size": 5}])
    _, [note] = read_folder(tmp_path)
    assert "x.json" in note
    assert "colour, size" in note
    text = report_page(tmp_path)
    assert sections(text) == ["tables", "notes"]
    assert ">blue</th>" in text


def test_other_files_are_passed_over(tmp_path):
    write(tmp_path, "a.json", results.demo_rows())
    (tmp_path / "plot.svg").write_text("<svg/>")
    (tmp_path / "t.trace").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    (tmp_path / ".hidden.json").write_text("{")
    (tmp_path / "folder.json").mkdir()
    files, notes = read_folder(tmp_path)
    assert [file.name for file in files] == ["a.json"]
    assert notes == []


def test_mistakes_end_with_code_2_and_a_sentence(tmp_path, report, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    write(tmp_path, "a.json", results.demo_rows())
    for words, names in (
        (["nowhere"], "'nowhere' is not a folder"),
        (["a.json"], "'a.json' is not a folder"),
        (["empty"], "'empty' holds no result file"),
        ([".", "--out", "no/p.html"], "no/p.html"),
        ([".", "--out", "empty"], "is a folder"),
    ):
        code, _, err = report(*words)
        assert code == 2
        assert names in err
        assert len(err.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "empty"]


def test_numbers_and_intervals():
    assert [number(value) for value in (1, 0.5, True, None, "1", float("nan"), 10**400)] == [1, 0.5, *[None] * 5]
    assert interval_of({"a_lo": 1, "a_hi": 2}, "a") == (1, 2)
    assert interval_of({"a_low": 1, "a_high": 2}, "a") == (1, 2)
    assert interval_of({"a_lo": 1}, "a") is None


def test_the_command_writes_the_page(tmp_path, report):
    results.one_of_each(tmp_path)
    code, out, err = report(tmp_path, "--out", tmp_path / "p.html")
    assert (code, err) == (0, "")
    assert "p.html: 6 result files" in out
    assert json.loads((tmp_path / "a.json").read_text())


def test_a_terminal_sees_how_far_it_is(tmp_path, report, monkeypatch):
    write(tmp_path, "a.json", CHECKS)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a terminal would
    code, _, err = report(tmp_path, "--out", tmp_path / "p.html")
    assert code == 0
    assert "8/8" in err


def test_the_page_itself_is_no_result_and_is_written_over(tmp_path, report):
    write(tmp_path, "a.json", CHECKS)
    for _ in range(2):
        code, out, err = report(tmp_path, "--out", tmp_path / "p.html")
        assert (code, err) == (0, "")
        assert "p.html: 1 result file" in out


def test_forms_of_one_policy_have_names_of_their_own(tmp_path):
    rows = [{"policy": "native", "otps": 9.0, "ratio": 1.0}]
    rows += [{"policy": results.BALANCED, "otps": 10.0, "ratio": 1.1}]
    rows += [{"policy": results.BALANCED, "cost": True, "otps": 12.0, "ratio": 1.2, "equal_ratio": 1.05}]
    rows += [{"policy": "k0=0,m=1,rho=0.7", "equals": results.BALANCED, "otps": 11.0, "ratio": 1.15}]
    write(tmp_path, "b.json", rows)
    (file,), _ = read_folder(tmp_path)
    assert [row["policy"] for row in file.rows] == [
        "native",
        "k0=0,rho=0.7",
        "k0=0,rho=0.7 by cost",
        "k0=0,m=1,rho=0.7 (as many as k0=0,rho=0.7)",
    ]
    assert policy_label("k0=0,rho=0.7 by cost") == "balanced (rho=0.7) by cost"
