"""The arithmetic of the offload benchmark. Its engine: vllm_check.py and offload.py --tiny."""

import sys
from pathlib import Path

import pytest

from xshare.policy import RECOMMENDED

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from lib.speed_rows import Counted
from offload import policies_for, rows_of


def test_a_row_says_how_far_time_follows_experts():
    ms = {"native": [600.0, 620.0], "noop": [600.0, 620.0], "balanced": [400.0, 410.0]}
    counted = {"native": Counted(), "noop": Counted(60.0, 60.0), "balanced": Counted(40.0, 60.0)}
    rows = {row["policy"]: row for row in rows_of({"batch": 16, "runner": "V1"}, ms, counted, 450e6)}
    assert rows["native"]["active"] == rows["noop"]["active"] == 60  # natively nothing is counted
    assert rows["balanced"]["expected"] == pytest.approx(1.5)
    assert rows["balanced"]["ratio"] == pytest.approx((600 / 400 + 620 / 410) / 2)
    assert rows["balanced"]["gbps"] == pytest.approx(40 * 450e6 / 405e6)


def test_what_is_measured():
    assert list(policies_for(128)) == ["native", "noop", *RECOMMENDED]
    assert policies_for(128)["noop"] == "k0=1,m=128"
