"""The page as HTML: nothing in a file becomes markup, nothing is fetched, everybody can read it."""

import base64
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
import small_result_files as results
from report_pages import Elements, report_page, sections
from small_result_files import write

from xshare.report.chart import COLOURS
from xshare.report.page import page
from xshare.report.result_files import read_folder


def test_rows_of_any_content_do_not_break_the_page(tmp_path):
    odd = [None, True, "text", [1, 2], [], {"a": 1}, float("nan"), float("inf"), 10**400, 1e-12, "\ud800", "$a$ $"]
    names = ("policy", "batch", "active", "active_native", "mass", "step_ms", "closed_form", "layer", "ratio")
    rows = [{name: odd[(place + shift) % len(odd)] for shift, name in enumerate(names)} for place in range(len(odd))]
    write(
        tmp_path,
        "r.json",
        rows + results.demo_rows() + results.speed_rows() + results.curve_rows(),
        model=[1],
    )
    assert sections(report_page(tmp_path))[0] == "pareto"


def test_names_in_files_are_text(tmp_path):
    evil = "</text></svg></title></style>--><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
    write(
        tmp_path,
        "a.json",
        [row | {"policy": row["policy"] + evil} for row in results.demo_rows()],
        argv=[evil],
    )
    write(tmp_path, "b.json", [row | {"method": evil} for row in results.replay_rows()], model=evil)
    write(tmp_path, "c.json", [row | {evil: evil} for row in results.layer_rows()])
    write(tmp_path, "<img src=x>.json", [{evil: 1}, {evil: 2}])
    text = page(*read_folder(tmp_path), evil)
    elements = Elements(text).tags
    assert not {"script", "img"} & {tag for tag, _ in elements}
    assert not any(name.startswith("on") for _, attributes in elements for name in attributes)
    assert "&lt;script&gt;alert(1)" in text


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder in which every section has something to show, and its page."""
    folder = tmp_path_factory.mktemp("results")
    results.one_of_each(folder)
    return folder, report_page(folder)


def test_the_page_is_accessible_and_fetches_nothing(whole):
    elements = Elements(whole[1]).tags
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
    write(tmp_path, "r.json", results.quality_rows())
    [link] = [a for tag, a in Elements(report_page(tmp_path)).tags if a.get("download")]
    assert link["download"] == "r.json"
    assert base64.b64decode(link["href"].partition("base64,")[2]) == (tmp_path / "r.json").read_bytes()


def test_tables_say_once_what_is_the_same_and_align_numbers(tmp_path):
    write(tmp_path, "r.json", [row | {"pairs": 10_000, "share": 0.123456} for row in results.replay_rows()])
    text = report_page(tmp_path)
    shared = "method xshare, batch 16, experts loaded natively 44, best expert kept 100.0 %, pairs 10000, share 0.1235"
    assert f"In every row: {shared}." in text
    assert '<th scope="row">k0=1,m=16</th><td class="number">30</td><td class="number">29 to 31</td>' in text
    assert '<td class="number">94.0 %</td>' in text


def test_provenance_is_on_the_page(tmp_path):
    write(tmp_path, "r.json", results.quality_rows(), argv=["xshare", "demo", "--batch", "16"])
    text = report_page(tmp_path)
    for fact in ("xshare demo --batch 16", "NVIDIA H200", "torch 2.13.0", "0a43b46", "2026-11-15T12:00", "nano"):
        assert fact in text


def test_later_runs_are_told_and_are_no_column(tmp_path):
    write(tmp_path, "r.json", [row | {"stamp": 1} for row in results.quality_rows()])
    whole = json.loads((tmp_path / "r.json").read_text())
    later = {"git": "77c0ffee", "time": "2026-12-24T18:00:00+00:00"}
    (tmp_path / "r.json").write_text(json.dumps(whole | {"stamps": [later]}))
    text = report_page(tmp_path)
    assert "measured 2026-11-15 to 2026-12-24" in text
    assert "Continued by a later run:" in text
    assert "77c0ffee" in text
    assert ">stamp<" not in text
    assert "stamp 1" not in text


def test_the_same_results_give_the_same_page(whole):
    folder, text = whole
    assert report_page(folder) == text


def test_colours_can_be_told_from_the_paper_in_light_and_in_dark():
    css = (Path(page.__code__.co_filename).parent / "page.css").read_text()
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part)) for part in css.split("@media")[:2])
    assert set(light) == set(dark) >= {f"series-{place}" for place in range(1, 1 + COLOURS)}
    for theme in (light, dark):
        for name, wanted in {
            "ink": 7,
            "muted": 4.5,
            "link": 4.5,
            **dict.fromkeys(map("series-{}".format, range(1, 9)), 3),
        }.items():
            assert contrast(theme[name], theme["paper"]) >= wanted, name


def contrast(a, b):
    """The contrast ratio as WCAG defines it."""

    def light(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    low, high = sorted((light(a), light(b)))
    return (high + 0.05) / (low + 0.05)
