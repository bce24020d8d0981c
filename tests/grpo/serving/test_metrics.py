from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from grpo.serving.protocol.chat_response import Usage
from tests.grpo.serving.metric_families import feedback, metrics_of, served_turn

LABELS = 'model_name="clerk/1",arm="champion"'
PROMTOOL = shutil.which("promtool")


def test_an_answered_turn_is_counted_by_version_and_arm(tmp_path: Path):
    """Three tokens at 10, 10.1 and 10.4 s: gaps of 0.1 and 0.3 s, 0.2 s a token."""
    metrics = metrics_of(tmp_path)
    metrics.observe(served_turn(), Usage(prompt=7, completion=3), [10.0, 10.1, 10.4])
    values = metrics.values()
    expected = {
        f"vllm:prompt_tokens_total{{{LABELS}}}": 7,
        f"vllm:generation_tokens_total{{{LABELS}}}": 3,
        f'vllm:request_success_total{{{LABELS},finished_reason="stop"}}': 1,
        f"vllm:inter_token_latency_seconds_count{{{LABELS}}}": 2,
        f'vllm:inter_token_latency_seconds_bucket{{{LABELS},le="0.25"}}': 1,
        f"gen_ai_server_time_per_output_token_seconds_sum{{{LABELS}}}": 0.2,
        f"gen_ai_server_time_to_first_token_seconds_sum{{{LABELS}}}": 0.5,
        f"gen_ai_server_request_duration_seconds_sum{{{LABELS}}}": 0.75,
    }
    for name, value in expected.items():
        assert values[name] == pytest.approx(value), name


@pytest.mark.parametrize(("status", "finished"), [("aborted", "abort"), ("failed", "error")])
def test_a_turn_without_an_answer_has_its_reason_of_vllm_and_no_duration(tmp_path: Path, status: str, finished: str):
    """The text of its reason, which may hold anything, is not a label; its tokens count."""
    metrics = metrics_of(tmp_path)
    turn = served_turn(status=status, reason="RuntimeError: user 17", first_token_s=None)
    metrics.observe(turn, Usage(prompt=0, completion=1), [3.0])
    values = metrics.values()
    assert values[f'vllm:request_success_total{{{LABELS},finished_reason="{finished}"}}'] == 1
    assert values[f"vllm:generation_tokens_total{{{LABELS}}}"] == 1
    assert "user 17" not in metrics.render().decode()
    assert f"gen_ai_server_request_duration_seconds_count{{{LABELS}}}" not in values
    assert f"gen_ai_server_time_to_first_token_seconds_count{{{LABELS}}}" not in values


def test_ten_thousand_users_make_no_further_series(tmp_path: Path):
    """Labels have neither users nor keys, conversations or unknown addresses."""
    metrics = metrics_of(tmp_path)

    def serve(number: int) -> None:
        turn = served_turn(id=f"t{number}", conversation_id=f"c{number}", user=f"u{number}", key=f"k{number}")
        metrics.observe(turn, Usage(prompt=1, completion=2), [0.0, 0.1])
        metrics.observe_feedback(feedback(conversation_id=f"c{number}", success=True))

    serve(0)
    series = metrics.values().keys()
    for number in range(1, 10_000):
        serve(number)
    values = metrics.values()
    assert values.keys() == series
    assert values['grpo_feedback_total{kind="rating"}'] == 10_000
    assert values['grpo_feedback_outcomes_total{success="true"}'] == 10_000
    assert len(values) < 300


def test_feedback_is_counted_by_what_it_holds(tmp_path: Path):
    """A failed outcome with a comment is two kinds and one outcome."""
    metrics = metrics_of(tmp_path)
    metrics.observe_feedback(feedback(rating=None, success=False, comment="no"))
    counted = {name: value for name, value in metrics.values().items() if value and "feedback" in name}
    assert {name: value for name, value in counted.items() if "_created" not in name} == {
        'grpo_feedback_total{kind="comment"}': 1,
        'grpo_feedback_total{kind="success"}': 1,
        'grpo_feedback_outcomes_total{success="false"}': 1,
    }


def test_the_last_report_of_each_retraining_is_shown(tmp_path: Path):
    """With the time of its file; one that cannot be read is named as such, and stops no scrape.

    Of 90 answered turns 3 + 2 are in no conversation, of 20 records of feedback 4 are quarantined and 1 is a duplicate.
    """
    served = {"answered": 90, "turns unjoined: unknown parent": 3, "turns unjoined: circular parents": 2}
    served |= {"joined_feedback": 15, "duplicate_feedback": 1, "feedback quarantined: unknown turn": 4}
    curation = {"records": 40, "accepted": 30, "served": served}
    for name, text in (
        ("weekly", json.dumps({"verdict": "refuse", "triggers": {"curation": curation}})),
        ("torn", '{"verdict": '),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "retraining.json").write_text(text)
        os.utime(tmp_path / name / "retraining.json", (1000, 2000))
    (tmp_path / "refused" / "retraining.json").mkdir(parents=True)  # the system does not let it be read
    os.utime(tmp_path / "refused" / "retraining.json", (1000, 2000))
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "retraining.json").symlink_to(tmp_path / "removed")
    values = metrics_of(tmp_path / "log", tmp_path).values()
    assert {name: value for name, value in values.items() if name.startswith("grpo_retraining")} == {
        'grpo_retraining_timestamp_seconds{name="refused",verdict="unreadable"}': 2000,
        'grpo_retraining_timestamp_seconds{name="weekly",verdict="refuse"}': 2000,
        'grpo_retraining_timestamp_seconds{name="torn",verdict="unreadable"}': 2000,
        'grpo_retraining_records{name="weekly",result="read"}': 40,
        'grpo_retraining_records{name="weekly",result="accepted"}': 30,
        'grpo_retraining_turns{name="weekly",result="joined"}': 85,
        'grpo_retraining_turns{name="weekly",result="unjoined"}': 5,
        'grpo_retraining_feedback{name="weekly",result="joined"}': 15,
        'grpo_retraining_feedback{name="weekly",result="quarantined"}': 4,
        'grpo_retraining_feedback{name="weekly",result="duplicate"}': 1,
    }


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed; it comes with Prometheus")
def test_promtool_notices_nothing_but_the_colons_of_vllm(tmp_path: Path):
    """Names, types, units and help texts are Prometheus' conventions."""
    metrics = metrics_of(tmp_path)
    metrics.observe(served_turn(), Usage(prompt=1, completion=2), [0.0, 0.1])
    checked = subprocess.run(
        [str(PROMTOOL), "check", "metrics"], input=metrics.render(), capture_output=True, check=False
    )
    notices = checked.stderr.decode().splitlines()
    assert notices
    assert [line for line in notices if not line.startswith("vllm:") or "should not contain ':'" not in line] == []
