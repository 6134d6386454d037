"""The first screen: whether to turn selection on, with which policy, and nothing that was not measured."""

import re

import pytest
import small_result_files as results
from report_pages import EVIDENCE, report_page
from small_result_files import BALANCED, CAREFUL, FAST, LOSSES, SPEEDS, answered, timed, write

from xshare.report.known_policies import settings
from xshare.report.result_files import read_folder, read_result
from xshare.report.verdict import verdict


def judged(folder):
    return verdict(settings(read_folder(folder)[0])[0])


def test_the_fastest_that_loses_less_than_two_points_is_recommended_by_its_name(tmp_path):
    write(tmp_path, "bench.json", timed(SPEEDS), engine="vllm")
    write(tmp_path, "quality.json", answered(LOSSES), model="/models/nano", engine="transformers")  # the same model
    judgement = judged(tmp_path)
    assert judgement.setting.where == "nano, vllm for speed, transformers for answers, batch 16"
    assert (judgement.answer, judgement.recommended, judgement.shown.policy) == ("Yes", True, BALANCED)
    assert "balanced (rho=0.7) is the fastest policy that loses less than 2 points" in judgement.words
    assert "+20.0 % speed (95 %: +19.0 % to +21.0 %), -1.0 points of accuracy (95 %: -1.5 to -0.5)" in judgement.words
    text = report_page(tmp_path)
    assert "{&quot;xshare&quot;: {&quot;policy&quot;: &quot;balanced&quot;}}" in text
    assert '<th scope="row">balanced (rho=0.7)<small>recommended</small></th>' in text
    first = text[: text.index('<section id="')]
    assert first.count("<svg") == 1
    assert 'class="ring"' in first


def test_speed_of_few_runs_has_a_range_and_no_interval(tmp_path):
    write(tmp_path, "bench.json", timed(SPEEDS, repeats=5), engine="vllm")
    write(tmp_path, "quality.json", answered(LOSSES), model="nano", engine="transformers")
    assert "+20.0 % speed (range of 5: +19.0 % to +21.0 %), -1.0 points of accuracy (95 %:" in judged(tmp_path).words
    text = report_page(tmp_path)
    assert '<th scope="col" class="number">speed<small>range of 5</small></th>' in text
    assert "of a median of fewer than 6 runs, its range" in text
    tables = text[text.index('<section id="tables"') :]
    assert tables.count(">range of 5</th>") == 1  # the ratio's
    assert tables.count(">95 %</th>") == 1  # the change's


def test_speed_of_one_task_is_not_held_against_answers_of_another(tmp_path):
    both = [a | b for a, b in zip(timed(SPEEDS), answered(LOSSES), strict=True)]
    write(tmp_path, "r.json", [row | {"task": task} for task in ("sums", "sorting") for row in both])
    ranked = settings(read_folder(tmp_path)[0])
    assert [(setting.speed.regime["task"], setting.answers.regime["task"]) for setting in ranked] == [
        (t, t) for t in ("sums", "sorting")
    ]


def test_what_may_lose_more_is_perhaps(tmp_path):
    write(tmp_path, "r.json", [a | b for a, b in zip(timed(SPEEDS), answered(LOSSES, 0.03), strict=True)])
    judgement = judged(tmp_path)
    assert (judgement.answer, judgement.shown.policy) == ("Perhaps", BALANCED)
    assert "may be as large as 4.0 points" in " ".join(judgement.doubts)


def test_answers_of_another_model_are_told_and_are_perhaps(tmp_path):
    write(tmp_path, "bench.json", timed(SPEEDS), model="large")
    write(tmp_path, "quality.json", answered(LOSSES), model="small")
    judgement = judged(tmp_path)
    assert judgement.answer == "Perhaps"
    assert "Speed is that of large, answers are those of small" in " ".join(judgement.doubts)
    write(tmp_path, "quality.json", answered(LOSSES), model=None)
    assert "answers are those of a model without a name" in " ".join(judged(tmp_path).doubts)
    write(tmp_path, "own.json", answered(LOSSES), model="large")  # then those of another are not needed
    assert judged(tmp_path).answer == "Yes"
    write(tmp_path, "own.json", answered(LOSSES, batch=64), model="large")  # of other batches
    assert judged(tmp_path).answer == "Perhaps"


@pytest.mark.parametrize(
    ("speeds", "losses", "reason"),
    [
        (SPEEDS, dict.fromkeys(LOSSES, -0.04), "at least 3 % faster loses 2 points or more; fast (rho=0.6) loses"),
        (dict.fromkeys(SPEEDS, 1.02), LOSSES, "No policy is at least 3 % faster than native; the fastest that loses"),
    ],
)
def test_none_is_worth_it(speeds, losses, reason, tmp_path):
    write(tmp_path, "r.json", [a | b for a, b in zip(timed(speeds), answered(losses), strict=True)])
    judgement = judged(tmp_path)
    assert (judgement.answer, judgement.recommended) == ("No", False)
    assert judgement.words.startswith("None is worth it here.")
    assert reason in judgement.words
    text = report_page(tmp_path)
    assert "recommended" not in text
    assert "vllm serve" not in text


def test_what_was_not_measured_is_not_claimed(tmp_path):
    write(tmp_path, "r.json", timed(SPEEDS))
    judgement = judged(tmp_path)
    assert (judgement.answer, judgement.recommended) == ("Not known", False)
    assert "Nothing here measured the answers. The fastest policy is fast (rho=0.6)" in judgement.words
    assert "points" not in judgement.words
    write(tmp_path, "r.json", answered(LOSSES))
    judgement = judged(tmp_path)
    assert (judgement.answer, judgement.recommended) == ("Not known", False)
    assert "Nothing here measured speed." in judgement.words
    assert "25.0 % fewer experts loaded" in judgement.words
    write(tmp_path, "r.json", answered(dict.fromkeys(LOSSES, -0.4)))
    assert judged(tmp_path).answer == "No"
    for rows in (
        results.replay_rows(),
        results.curve_rows(),
        [{"check": "attached", "passed": True}],
    ):
        write(tmp_path, "r.json", rows)
        assert "measured neither the speed of policies nor their answers" in report_page(tmp_path)


def test_speed_without_an_interval_is_perhaps(tmp_path):
    faster = {"k0=1,m=16": 1200.0}
    write(
        tmp_path,
        "r.json",
        [row | {"tokens_per_s": faster.get(row["policy"], 950.0)} for row in results.demo_rows()],
    )
    judgement = judged(tmp_path)
    assert (judgement.answer, judgement.shown.policy) == ("Perhaps", "k0=1,m=16")
    assert "Nothing says how sure the speed is" in " ".join(judgement.doubts)


def test_controls_are_no_choice_and_the_speed_of_a_layer_is_none(tmp_path):
    control = timed({"k0=1,m=64": 1.5}, method="noop") + timed({"k0=1,m=48": 1.5}, active=40)  # either loads all
    write(tmp_path, "r.json", control + answered({"native": 0.0}) + timed(SPEEDS), drafter="nano-draft")
    assert [choice.policy for choice in settings(read_folder(tmp_path)[0])[0].choices] == [FAST, BALANCED, CAREFUL]
    assert "nano-draft" not in report_page(tmp_path).partition("<svg")[0]  # nothing was drafted
    assert settings([read_result(EVIDENCE / "paper_ep.json")]) == []


def test_the_answer_comes_before_the_files(tmp_path):
    results.one_of_each(tmp_path)
    text = report_page(tmp_path)
    assert len(set(re.findall(r"[a-e]\.json", text[: text.index("<svg")]))) <= 2  # those of the answer
    assert text.index('class="answer"') < text.index("<svg") < text.index('<section id="tables"')


def test_the_evidence_puts_first_what_one_model_measured():
    """Its few questions leave a doubt. Where speed and answers are of two models, both are named."""
    ranked = settings(read_folder(EVIDENCE)[0])
    top = verdict(ranked[0])
    assert top.setting.one_model
    assert top.answer == "Perhaps"
    assert "ask more questions" in " ".join(top.doubts)
    other = next(verdict(setting) for setting in ranked if not setting.one_model and setting.speed and setting.answers)
    assert other.setting.speed.model in " ".join(other.doubts)
    assert other.setting.answers.model in " ".join(other.doubts)
    assert other.answer != "Yes"
    assert all(verdict(setting).words for setting in ranked)
