"""Plots and tables as they are read: nothing covered, cut or impossible, and made while one waits."""

import re
import time
from itertools import combinations

import pytest
import small_result_files as results
from report_pages import EVIDENCE, report_page
from small_result_files import write

from xshare.progress import quiet
from xshare.quality.paired import paired
from xshare.report import law, pareto, plot
from xshare.report.axis import Axis
from xshare.report.chart import BOTTOM, HEIGHT, LEFT, LETTER, NAME, RIGHT, TOP, WIDTH, Chart, Series
from xshare.report.page import STEPS, page
from xshare.report.point_labels import place
from xshare.report.result_files import read_folder, read_result

NAMED = re.compile(r'<text x="([\d.]+)" y="([\d.]+)" class="name( end)?">([^<]*)</text>')


def overlap(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def name_boxes(svg):
    for x, y, ends, name in NAMED.findall(svg):
        width = LETTER * NAME * len(name.replace("&#x27;", "'"))
        left, middle = float(x) - (width if ends else 0), float(y) - 0.35 * NAME
        yield left, middle - 0.6 * NAME, left + width, middle + 0.6 * NAME


def whole_points(svg):
    """How many there are; all with their markers inside the frame."""
    points = re.findall(r'translate\(([\d.]+) ([\d.]+)\)" class="point', svg)
    assert all(LEFT + 4 < float(x) < WIDTH - RIGHT - 4 for x, _ in points)
    assert all(TOP + 4 < float(y) < HEIGHT - BOTTOM - 4 for _, y in points)
    assert "clip" not in svg
    return len(points)


@pytest.mark.parametrize("name", ["paper_ep.json", "paper_quality.json"])
def test_names_cover_nothing_and_stay_inside(name):
    for plane in pareto.planes([read_result(EVIDENCE / name)]):
        svg = pareto.chart(plane).svg()
        boxes = list(name_boxes(svg))
        assert len(boxes) >= 2
        near = [(a, b) for a, b in combinations(boxes, 2) if overlap([a[0] + 0.2, a[1] + 0.2, *a[2:]], b)]
        assert near == []
        assert all(a[0] >= LEFT and a[2] <= WIDTH - RIGHT + 0.1 for a in boxes)
        assert whole_points(svg) == len(plane.points)


def test_a_name_without_a_place_is_left_out():
    crowd = [(50.0 + n % 5, 50.0 + n // 5) for n in range(40)]
    spots = place(crowd, [(60.0, 10.0)] * 40, [], (0, 0, 150, 100))
    put = [spot for spot in spots if spot is not None]
    assert 1 <= len(put) < 40
    assert spots[0] is not None  # the first choose first


def test_a_legend_says_what_differs_and_is_never_cut():
    by_regime = list(law.laws(read_result(EVIDENCE / "paper_speed.json")))
    assert all(whole_points(law.chart([steps]).svg()) == len(steps.active) for steps in by_regime)
    drafted = [steps for steps in by_regime if "drafter eagle3" in steps.regime][:1]
    assert ">batch 4<" not in law.chart(drafted).figure("", "")  # of one line there is nothing to tell apart
    plain = [steps for steps in by_regime if steps.but_batch == by_regime[0].but_batch]
    legend = re.sub("<[^>]*>", "", law.chart(plain).figure("", "").partition("</p>")[0])
    assert legend == "● batch 16■ batch 32◆ batch 8▲ batch 4"
    long = "layers 36, batch 4, drafts 3, drafter eagle3, independent"
    two = [Series(long + end, [(1, 1, 1)], [(2, 2, 2)], 0) for end in "ab"]
    assert long + "a" in Chart(Axis(""), Axis(""), two).figure("", "").partition("<svg")[0]


def test_ticks_are_round_and_say_what_they_are():
    def ticks(axis, *values):
        return [text for _, text in axis.scale(values, 0, 100).ticks()]

    assert ticks(Axis("", 0.01, " %"), 0.0, 0.4) == ["0 %", "10 %", "20 %", "30 %", "40 %"]
    assert ticks(Axis("", sign=True), -3.0, 0.5) == ["-3", "-2", "-1", "0"]
    assert ticks(Axis("", zero=True), 0.1, 0.24)[:3] == ["0.00", "0.05", "0.10"]
    assert ticks(Axis("", doubling=True), 1, 2, 8) == ["1", "2", "4", "8"]
    assert ticks(Axis(""), 1e300, 1e300)  # one place only


def test_names_of_a_replay_stay_inside_the_axes(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(plot, "save", lambda figure, path: figures.append(figure))
    many = [(44.0, 1.0, "native"), (43.5, 0.99, "k0=1,m=16,score=full"), (10, 0.3, "random:k0=1,m=6,score=full")]
    many += [(10.0 + n / 9, 0.3 + n / 900, f"k0=1,m={n}") for n in range(12)]
    plot.plot_tradeoff([{"active": a, "mass": m, "policy": p} for a, m, p in many], tmp_path / "p.svg", "title")
    [axes] = figures[0].axes
    inside = axes.get_window_extent()
    notes = [note for note in axes.texts if note.get_text()]
    boxes = [note.get_window_extent().extents for note in notes]
    assert all(inside.x0 <= x0 and x1 <= inside.x1 and inside.y0 <= y0 and y1 <= inside.y1 for x0, y0, x1, y1 in boxes)
    assert not any(overlap(a, b) for a, b in combinations(boxes, 2))
    listed = [text.get_text() for text in axes.get_legend().get_texts()]  # those without a place
    spelled = " = ".join([note.get_text() for note in notes] + listed).split(" = ")
    assert sorted(spelled) == sorted(policy for _, _, policy in many)


def test_columns_and_shares_are_readable(tmp_path):
    write(tmp_path, "r.json", [row | {"accuracy": 0.925, "step_ms": 1.5} for row in results.demo_rows()[:1]])
    text = report_page(tmp_path)
    assert '<th scope="col" class="number" title="active_native">experts loaded natively</th>' in text
    assert ">step, ms</th>" in text
    assert ">92.5 %</td>" in text
    assert "0.9250" not in text


def test_an_interval_stays_within_what_is_possible(tmp_path):
    change = paired([True] * 40, [False] * 38 + [True] * 2)
    assert -1 <= change.low <= change.change <= change.high
    assert paired([False] * 40, [True] * 40).high == 1
    row = results.demo_rows()[1] | {
        "change": -0.95,
        "change_low": -1.005,
        "change_high": -0.8,
        "accuracy_high": 1.02,
    }
    write(tmp_path, "r.json", [results.demo_rows()[0] | {"change": 0.0}, row])  # as files of before have it
    text = report_page(tmp_path)
    assert ">-100.0 to -80.0<" in text
    assert "-100.5" not in text
    assert ">88.0 to 100.0 %<" in text


def test_the_page_of_all_evidence_is_made_while_one_waits():
    files, notes = read_folder(EVIDENCE)
    done, start = [], time.process_time()
    page(files, notes, "Results", done.append)
    assert time.process_time() - start < 12  # 51 s when matplotlib drew it on the same machine, now 1.5
    assert sum(done) == STEPS
    assert quiet(1) is None
