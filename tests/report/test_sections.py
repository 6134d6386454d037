"""What each section of the report shows: the front, the law, the layers."""

from dataclasses import astuple

import pytest
import small_result_files as results
from report_pages import EVIDENCE, report_page, sections
from small_result_files import write

from xshare.report.law import laws
from xshare.report.layers import by_layer
from xshare.report.pareto import planes
from xshare.report.result_files import read_folder, read_result
from xshare.report.staircase import chart, staircases


def test_sections_are_there_when_there_is_data_for_them(tmp_path):
    for name, rows, wanted in (
        ("demo", results.demo_rows(), ["pareto", "tables"]),
        ("layers", results.layer_rows(), ["layers", "tables"]),
        ("speed", results.speed_rows(), ["law", "tables"]),
        ("curve", results.curve_rows(), ["curve", "tables"]),
        ("stairs", results.stairs_rows(), ["stairs", "tables"]),
    ):
        (tmp_path / name).mkdir()
        write(tmp_path / name, "r.json", rows)
        assert sections(report_page(tmp_path / name)) == wanted


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
    assert "k0=1,m=16 = oea:k0=2" in report_page(tmp_path)


def test_measured_speed_comes_first_and_intervals_are_kept(tmp_path):
    write(tmp_path, "r.json", results.demo_rows())
    measured, saved = planes(read_folder(tmp_path)[0])
    assert (measured.speed, measured.quality, saved.speed) == ("tokens_per_s", "accuracy", "saved")
    assert measured.points[0].quality == pytest.approx((0.94, 0.89, 0.98))


def test_regimes_are_not_mixed_and_two_files_meet_only_under_the_same_conditions(tmp_path):
    write(tmp_path, "speed.json", results.speed_rows(batches=(4, 16)))
    write(tmp_path, "quality.json", results.quality_rows(batch=16))
    drawn = list(planes(read_folder(tmp_path)[0]))
    assert [(plane.speed, plane.source) for plane in drawn] == [
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
    assert "batch 16: step = 4 + 0.1 T ms, R² 1.000" in large.law_text()


def test_no_law_goes_through_models_of_different_depth(tmp_path):
    deep = [row | {"layers": 36, "step_ms": 1.5 * row["step_ms"]} for row in results.speed_rows(batches=(16,))]
    write(tmp_path, "r.json", [row | {"layers": 24} for row in results.speed_rows(batches=(16,))] + deep)
    assert [steps.law.r2 for steps in laws(read_folder(tmp_path)[0][0])] == pytest.approx([1, 1])
    measured = [steps for steps in laws(read_result(EVIDENCE / "paper_speed.json")) if "batch 16" in steps.regime]
    assert {f"{layers} layers" in measured[0].regime for layers in (24, 36)} == {True, False}
    assert min(steps.law.r2 for steps in measured) > 0.97  # through 24 and 36 layers together it was 0.05


def test_two_sizes_are_no_line(tmp_path):
    write(tmp_path, "r.json", results.speed_rows(batches=(4,))[1:3])
    [law] = laws(read_folder(tmp_path)[0][0])
    assert law.law is None
    assert "too few" in report_page(tmp_path)


def test_layers_from_rows_and_from_lists():
    wanted = {"native": {0: 44, 1: 45, 2: 46}, "k0=1,m=0": {0: 15, 1: 16, 2: 17}}
    counts = by_layer(results.layer_rows())
    assert {name: counts[name] for name in wanted} == wanted
    assert next(iter(counts)) == "native"
    listed = [{"policy": "p", "experts_active": [3, 5.5], "experts_native": [7, 8]}]
    assert by_layer(listed) == {"native": {0: 7, 1: 8}, "p": {0: 3, 1: 5.5}}
    assert by_layer(results.demo_rows()) == {}


def test_a_staircase_has_a_line_for_each_number_of_rows_and_its_edges_named(tmp_path):
    noisy = [
        row | {"batch": 32, "ms_low": row["ms"] - 0.3, "ms_high": row["ms"] + 0.3} for row in results.stairs_rows((4,))
    ]
    write(tmp_path, "r.json", results.stairs_rows() + noisy)
    [(regime, curves)] = staircases(read_folder(tmp_path)[0][0])
    assert regime["layers"] == 24
    assert [stairs.rows for stairs in curves] == [4, 16, 32]
    assert [stairs.ends() for stairs in curves] == [[11, 16], [11, 16], []]
    assert [s.name for s in chart(curves).series] == ["4 rows", "16 rows", "32 rows"]
    assert curves[0].times[11] == pytest.approx((3.25, 3.24, 3.26))
    text = report_page(tmp_path)
    assert "4 rows: stairs end at 11, 16; 16 rows: stairs end at 11, 16; 32 rows: no clear stairs." in text
    assert "time of a step by the size of its set" in text
    assert text.count(">11</text>") == 2
    assert "11 experts: 3.250 ms (3.240 to 3.260)" in text


def test_a_staircase_whose_times_do_not_grow_is_drawn_without_edges(tmp_path):
    flat = [
        row | {"ms": 3 - row["experts"] / 100, "ms_low": 1, "ms_high": 4, "cost": None} for row in results.stairs_rows()
    ]
    broken = [{"batch": 4, "experts": None, "ms": 3.0}, {"batch": 4, "experts": 30, "ms": None}]
    write(tmp_path, "r.json", flat + broken)
    assert [stairs.ends() for stairs in next(staircases(read_folder(tmp_path)[0][0]))[1]] == [[], []]
    assert sections(report_page(tmp_path)) == ["stairs", "tables"]
