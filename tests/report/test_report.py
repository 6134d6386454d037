"""The report: what is recognised, what each section shows, and that nothing in a file becomes markup."""

import base64
import json
import re
from dataclasses import astuple
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
import results
from results import write

from xshare.cli import main
from xshare.report.inline import SERIES
from xshare.report.law import laws
from xshare.report.layers import by_layer
from xshare.report.page import page
from xshare.report.pareto import planes
from xshare.report.read import read_folder
from xshare.results.columns import ends, number

EVIDENCE = Path(__file__).parents[2] / "evidence"
SECTIONS = ("pareto", "layers", "law", "curve", "tables", "notes")


def made(folder):
    return page(*read_folder(folder), "Results")


def sections(text):
    return [name for name in SECTIONS if f'<section id="{name}"' in text]


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
        "checks": [{"check": "attached", "passed": True, "detail": ""}],
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
    write(folder, "good.json", results.demo_rows())
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
    text = made(tmp_path)
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


def test_sections_are_there_when_there_is_data_for_them(tmp_path):
    for name, rows, wanted in (
        ("demo", results.demo_rows(), ["pareto", "tables"]),
        ("layers", results.layer_rows(), ["layers", "tables"]),
        ("speed", results.speed_rows(), ["law", "tables"]),
        ("curve", results.curve_rows(), ["curve", "tables"]),
    ):
        (tmp_path / name).mkdir()
        write(tmp_path / name, "r.json", rows)
        assert sections(made(tmp_path / name)) == wanted
    assert sections(made(EVIDENCE)) == ["pareto", "layers", "law", "curve", "tables"]


def test_the_front_is_what_nothing_beats(tmp_path):
    write(tmp_path, "r.json", results.replay_rows() + results.layer_rows())
    [plane] = planes(read_folder(tmp_path)[0])
    assert (plane.speed, plane.quality) == ("saved", "mass")
    assert len(plane.points) == 4  # layers are no points
    assert [p.policy for p in plane.front()] == ["native", "k0=1,m=16", "k0=1,m=0"]
    assert plane.points[1].speed == pytest.approx((14 / 44, 13 / 44, 15 / 44))  # fewer experts is more saved


def test_equal_points_are_both_on_the_front(tmp_path):
    rows = results.replay_rows()
    write(tmp_path, "r.json", [*rows, rows[1] | {"policy": "oea:k0=2"}])
    [plane] = planes(read_folder(tmp_path)[0])
    assert {"k0=1,m=16", "oea:k0=2"} <= {p.policy for p in plane.front()}
    assert "k0=1,m=16 = oea:k0=2" in made(tmp_path)


def test_measured_speed_comes_first_and_intervals_are_kept(tmp_path):
    write(tmp_path, "r.json", results.demo_rows())
    measured, saved = planes(read_folder(tmp_path)[0])
    assert (measured.speed, measured.quality, saved.speed) == ("tokens_per_s", "accuracy", "saved")
    assert measured.points[0].quality == pytest.approx((0.94, 0.89, 0.98))


def test_regimes_are_not_mixed_and_two_files_meet_only_under_the_same_conditions(tmp_path):
    write(tmp_path, "speed.json", results.speed_rows(batches=(4, 16)))
    write(tmp_path, "quality.json", results.quality_rows(batch=16))
    found = list(planes(read_folder(tmp_path)[0]))
    assert [(plane.speed, plane.source) for plane in found] == [
        ("ratio", "speed.json and quality.json: nano, batch 16")
    ]
    write(tmp_path, "quality.json", results.quality_rows(batch=16), model="another")
    assert list(planes(read_folder(tmp_path)[0])) == []
    with_mass = [row | {"mass": 0.9} for row in results.speed_rows(batches=(16,))]
    write(tmp_path, "speed.json", with_mass, model="another")  # answers say more than mass, and come first
    assert [p.quality for p in planes(read_folder(tmp_path)[0])] == ["accuracy", "mass", "mass"]


def test_the_law_is_fitted_for_each_regime_without_plain_runs(tmp_path):
    write(tmp_path, "r.json", results.speed_rows())
    small, large = laws(read_folder(tmp_path)[0][0])
    assert astuple(small.law) == pytest.approx((3.25, 0.1, 1.0))
    assert astuple(large.law) == pytest.approx((4.0, 0.1, 1.0))
    assert 44.0 not in small.active  # plain: no selection in its time
    assert "batch 16: step = 4 + 0.1 T ms, R² 1.000" in large.spelled()


def test_two_sizes_are_no_line(tmp_path):
    write(tmp_path, "r.json", results.speed_rows(batches=(4,))[1:3])
    [law] = laws(read_folder(tmp_path)[0][0])
    assert law.law is None
    assert "too few" in made(tmp_path)


def test_layers_from_rows_and_from_lists():
    wanted = {"native": {0: 44, 1: 45, 2: 46}, "k0=1,m=0": {0: 15, 1: 16, 2: 17}}
    found = by_layer(results.layer_rows())
    assert {name: found[name] for name in wanted} == wanted
    assert next(iter(found)) == "native"
    listed = [{"policy": "p", "experts_active": [3, 5.5], "experts_native": [7, 8]}]
    assert by_layer(listed) == {"native": {0: 7, 1: 8}, "p": {0: 3, 1: 5.5}}
    assert by_layer(results.demo_rows()) == {}


def test_rows_of_any_content_do_not_break_the_page(tmp_path):
    odd = [None, True, "text", [1, 2], [], {"a": 1}, float("nan"), float("inf"), 10**400, 1e-12, "\ud800", "$a$ $"]
    names = ("policy", "batch", "active", "active_native", "mass", "step_ms", "closed_form", "layer", "ratio")
    rows = [{name: odd[(place + shift) % len(odd)] for shift, name in enumerate(names)} for place in range(len(odd))]
    write(tmp_path, "r.json", rows + results.demo_rows() + results.speed_rows() + results.curve_rows(), model=[1])
    assert sections(made(tmp_path))[0] == "pareto"


class Elements(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_names_in_files_are_text(tmp_path):
    evil = "</text></svg></title></style>--><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
    write(tmp_path, "a.json", [row | {"policy": row["policy"] + evil} for row in results.demo_rows()], argv=[evil])
    write(tmp_path, "b.json", [row | {"method": evil} for row in results.replay_rows()], model=evil)
    write(tmp_path, "c.json", [row | {evil: evil} for row in results.layer_rows()])
    write(tmp_path, "<img src=x>.json", [{evil: 1}, {evil: 2}])
    text = page(*read_folder(tmp_path), evil)
    elements = Elements(text).found
    assert not {"script", "img"} & {tag for tag, _ in elements}
    assert not any(name.startswith("on") for _, attributes in elements for name in attributes)
    assert "&lt;script&gt;alert(1)" in text


def test_the_page_is_accessible_and_fetches_nothing(tmp_path):
    results.one_of_each(tmp_path)
    elements = Elements(made(tmp_path)).found
    assert ("html", {"lang": "en"}) in elements
    levels = [int(tag[1]) for tag, _ in elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    plots = [attributes for _, attributes in elements if attributes.get("role") == "img"]
    assert len(plots) == sum(tag == "svg" for tag, _ in elements) >= 6
    assert all(attributes["aria-label"] for attributes in plots)
    assert all(attributes.get("scope") in ("row", "col") for tag, attributes in elements if tag == "th")
    addresses = [a[name] for _, a in elements for name in ("src", "href", "xlink:href") if a.get(name)]
    assert all(address.startswith(("#", "data:")) for address in addresses)
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {address[1:] for address in addresses if address.startswith("#")} <= set(ids)


def test_a_file_can_be_taken_out_of_the_page_again(tmp_path):
    write(tmp_path, "r.json", results.demo_rows())
    [link] = [a for tag, a in Elements(made(tmp_path)).found if a.get("download")]
    assert link["download"] == "r.json"
    assert base64.b64decode(link["href"].partition("base64,")[2]) == (tmp_path / "r.json").read_bytes()


def test_tables_say_once_what_is_the_same_and_align_numbers(tmp_path):
    write(tmp_path, "r.json", [row | {"pairs": 10_000, "share": 0.123456} for row in results.replay_rows()])
    text = made(tmp_path)
    said = "method xshare, batch 16, active_native 44, top1_kept 1, pairs 10000, share 0.1235"
    assert f"In every row: {said}." in text
    assert '<th scope="row">k0=1,m=16</th><td class="number">30</td><td class="number">29 to 31</td>' in text
    assert '<td class="number">0.9400</td>' in text


def test_provenance_is_on_the_page(tmp_path):
    write(tmp_path, "r.json", results.demo_rows(), argv=["xshare", "demo", "--batch", "16"])
    text = made(tmp_path)
    for fact in ("xshare demo --batch 16", "NVIDIA H200", "torch 2.13.0", "0a43b46", "2026-11-15T12:00", "nano"):
        assert fact in text


def test_later_runs_are_told_and_are_no_column(tmp_path):
    write(tmp_path, "r.json", [row | {"stamp": 1} for row in results.demo_rows()])
    whole = json.loads((tmp_path / "r.json").read_text())
    later = {"git": "77c0ffee", "time": "2026-12-24T18:00:00+00:00"}
    (tmp_path / "r.json").write_text(json.dumps(whole | {"stamps": [later]}))
    text = made(tmp_path)
    assert "measured 2026-11-15 to 2026-12-24" in text
    assert "Gone on with by a later run:" in text
    assert "77c0ffee" in text
    assert ">stamp<" not in text
    assert "stamp 1" not in text


def test_the_same_results_give_the_same_page(tmp_path):
    results.one_of_each(tmp_path)
    assert made(tmp_path) == made(tmp_path)


def test_colours_can_be_told_from_the_paper_in_light_and_in_dark():
    css = (Path(page.__code__.co_filename).parent / "page.css").read_text()
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part)) for part in css.split("@media")[:2])
    assert [light[f"series-{place}"] for place in range(1, 9)] == SERIES  # the colours that become variables
    for theme in (light, dark):
        for name, wanted in {
            "ink": 7,
            "muted": 4.5,
            "link": 4.5,
            **dict.fromkeys(map("series-{}".format, range(1, 9)), 3),
        }.items():
            assert contrast(theme[name], theme["paper"]) >= wanted, name


def contrast(a, b):
    """As WCAG has it."""

    def light(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    low, high = sorted((light(a), light(b)))
    return (high + 0.05) / (low + 0.05)


def test_numbers_and_intervals():
    assert [number(value) for value in (1, 0.5, True, None, "1", float("nan"), 10**400)] == [1, 0.5, *[None] * 5]
    assert ends({"a_lo": 1, "a_hi": 2}, "a") == (1, 2)
    assert ends({"a_low": 1, "a_high": 2}, "a") == (1, 2)
    assert ends({"a_lo": 1}, "a") is None


def test_the_command_writes_the_page(tmp_path, report):
    results.one_of_each(tmp_path)
    code, out, err = report(tmp_path, "--out", tmp_path / "p.html")
    assert (code, err) == (0, "")
    assert "p.html: 5 result files" in out
    code, out, err = report(tmp_path, "--out", tmp_path / "p.html")  # the page itself is no result
    assert (code, err) == (0, "")
    assert json.loads((tmp_path / "a.json").read_text())
