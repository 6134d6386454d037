"""The timing of mixed requests: its batches, its speed, and all of it on a small scale."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from xshare.engines.base import Answer, Run, StepTime
from xshare.quality.task_files import built_in

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
mixed_speed = importlib.import_module("mixed_speed")


def test_both_settings_have_the_same_questions():
    tasks = built_in(8)
    made = mixed_speed.batches(tasks)
    for wanted in (True, False):
        of_setting = [batch for mixed, batch in made if mixed == wanted]
        assert sorted(task.prompt for batch in of_setting for task in batch) == sorted(task.prompt for task in tasks)
        assert {len({task.kind for task in batch}) for batch in of_setting} == {4 if wanted else 1}
        assert {len(batch) for batch in of_setting} == {4}
    assert [mixed for mixed, _ in made] == [False, True] * (len(tasks) // 4)


def test_speed_counts_while_all_requests_run():
    answers = [Answer([1] * 4, "", times_s=[1.0, 2.0, 2.0, 4.0]), Answer([1] * 3, "", times_s=[1.5, 2.0, 3.0])]
    run = Run(answers, rows=6, timed=[StepTime(0.5, 2), StepTime(1.0, 1)])
    assert mixed_speed.speed(run) == (2 + 2) / (3.0 - 1.5)
    assert mixed_speed.accepted(run) == 2.0


def test_policies_are_the_papers_by_both_readings():
    names = list(map(str, mixed_speed.policies()))
    assert len(set(names)) == 17
    assert names[:2] == ["k0=1,m=64,score=full", "k0=1,m=0,mr=4,score=full"]
    assert {name + ",score=full" for name in names[9:]} == set(names[1:9])


def test_a_run_that_is_cut_off_goes_on(tmp_path):
    file, options = tmp_path / "mixed_speed.json", {"tokens": 6, "megabytes": 0.5, "questions": 4, "most": 1}
    mixed_speed.main(**options, json=file)
    whole = json.loads(file.read_text())
    assert [(row["mixed"], row["pairs"]) for row in whole["rows"]] == [(False, 8), (True, 8)]
    # The control keeps native's tokens, so it accepts as many.
    assert all(row["accepted"] == pytest.approx(row["native_accepted"]) for row in whole["rows"])
    part = whole | {"samples": [sample for sample in whole["samples"] if sample["number"] != 5]}
    file.write_text(json.dumps(part))
    mixed_speed.main(**options, json=file)
    again = json.loads(file.read_text())
    assert sorted(sample["number"] for sample in again["samples"]) == list(range(16))
    assert [sample.get("stamp") for sample in again["samples"] if sample["number"] == 5] == [1]
