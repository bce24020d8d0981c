"""The report's page: complete, safe for untrusted texts, and deterministic."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2 import UndefinedError

from grpo.evaluation.html_report import call, duration, number, percent, render_page, templates
from grpo.evaluation.plots import plot_png
from grpo.evaluation.schema import ReportDocument

HOSTILE = "<script>alert('refund me')</script><img src=x onerror=alert(1)>"
BROWSER = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run", "--window-size=1200,3000"),
)

PROMOTED = """
name: support-desk
created: "2026-03-04T05:06:07Z"
decision:
  verdict: promote
  reason: "every gate passed: the candidate is better and no category lost"
  checks:
    - {name: improvement, value: 0.341, relation: ">", bound: 0.0, passed: true, meaning: lower bound of the difference}
    - {name: length, value: 1.234, relation: "<=", bound: 2.0, passed: false, meaning: tokens over the champion's}
ingestion:
  {records: 1503, scenarios: 1480, quarantined: 23, train: 1360, heldout: 120, data_docs: data_docs/index.html,
   reasons: {opening is empty: 17, order number is unknown: 6}}
stages:
  - {name: ingest, runs: 1, cached: 1, compute_s: 0.0, wall_s: 0.0234}
  - {name: rollout, runs: 25, cached: 3, compute_s: 187.2, wall_s: 190.4}
  - {name: train, runs: 25, cached: 3, compute_s: 341.9, wall_s: 344.0}
wall_s: 5400.0
orchestration_share: 0.0411
lineage:
  {run: run-of-march, seed: 7, config_digest: c0ffee01, code_digest: c0de0002, scenarios_digest: 5ce0a203,
   base_policy: ba5e0004, forward_path: flat within 2e-06, champion_policy: 9f2c41d0,
   candidate_policy: b7701e5a, model_version: support-desk/4,
   package_versions: {transformers: 5.23.1, torch: 2.13.0}}
config: |
  name: support-desk
  rollout:
    group_size: 8
"""

EVALUATED = """
metric: success
confidence: 0.95
champion_policy: 9f2c41d0
candidate_policy: b7701e5a
kl_to_base: 0.3517
failed_share: 0.0083
truncated_share: 0.0125
length_ratio: 1.234
episodes: 480
"""

# the champion guesses the number of an order, the candidate asks for it
SERVED = """
champion:
  policy: 9f2c41d0
  turns:
    - {role: system, content: You are the support desk.}
    - {role: user, content: "Hello, this is Alice Weber. My kettle came broken. Please help!"}
    - {role: assistant, content: "", tool_calls: ['{"name": "look_up", "arguments": {"order": "1234"}}']}
    - {role: tool, content: '{"error": "unknown order"}'}
    - {role: assistant, content: A replacement is on its way.}
  stop: terminated
  success: false
  checks: {end_state: false, facts_communicated: true, honest: false, closed: true}
  reward: 0.3125
  breakdown: {task_completion: 0.0, checks: 0.5, valid_calls: 0.0, conciseness: 1.0}
candidate:
  policy: b7701e5a
  turns:
    - {role: system, content: You are the support desk.}
    - {role: user, content: "Hello, this is Alice Weber. My kettle came broken. Please help!"}
    - {role: assistant, content: "What is your order number?"}
    - {role: user, content: The number is 8812.}
    - {role: assistant, content: "", tool_calls: ['{"name": "replace", "arguments": {"order": "8812"}}']}
    - {role: tool, content: '{"done": "replace"}'}
    - {role: assistant, content: We send you a replacement.}
  stop: terminated
  success: true
  checks: {end_state: true, facts_communicated: true, honest: true, closed: true}
  reward: 0.9875
  breakdown: {task_completion: 1.0, checks: 1.0, valid_calls: 1.0, conciseness: 1.0}
"""


def comparison(name: str, champion: float, candidate: float, scenarios: int) -> dict[str, Any]:
    """Two means and their paired difference, each with an interval that reaches 0.06 to both sides."""
    means = {"champion": champion, "candidate": candidate, "difference": candidate - champion}
    sides = {
        side: {"mean": mean, "low": mean - 0.06, "high": mean + 0.06, "count": scenarios}
        for side, mean in means.items()
    }
    return {"name": name, **sides}


def evaluation(**changes: Any) -> dict[str, Any]:
    """From 41.2 % to 81.3 % on 120 scenarios; gains in each category and difficulty."""
    categories = {"return": (0.351, 0.822), "missing": (0.402, 0.711), "charge": (0.364, 0.854)}
    difficulties = {"easy": (0.622, 0.913), "hard": (0.242, 0.723)}
    parts = {
        "overall": comparison("all", 0.412, 0.813, 120),
        "by_category": [comparison(name, *means, 40) for name, means in categories.items()],
        "by_difficulty": [comparison(name, *means, 60) for name, means in difficulties.items()],
        "pass_at_k": [comparison("pass@1", 0.412, 0.813, 120), comparison("pass@2", 0.604, 0.921, 118)],
        "pass_hat_k": [comparison("pass^1", 0.412, 0.813, 120), comparison("pass^2", 0.213, 0.702, 118)],
    }
    return {**yaml.safe_load(EVALUATED), **parts, **changes}


def iteration(index: int, **changes: Any) -> dict[str, Any]:
    """One of 25 rounds on the way from 40 % to 80 % success."""
    done = index / 24
    shares = {"informative_share": 0.8 - 0.4 * done, "clip_share": 0.031, "truncated_share": 0.02, "failed_share": 0.0}
    return {
        "index": index,
        "reward": 0.45 + 0.4 * done,
        "success": 0.4 + 0.4 * done,
        "components": {"checks": 0.7 + 0.2 * done, "conciseness": 1.0},
        **shares,
        "kl_to_base": 0.35 * done,
        "entropy": 0.42 - 0.2 * done,
        "gradient_norm": 0.734,
        "learning_rate": 1e-4,
        "tokens": 14_200 + index,
        **changes,
    }


def pair(index: int = 0) -> dict[str, Any]:
    """A scenario served by both; the agent's text is cut before each space and around each digit and tag."""
    served: dict[str, Any] = yaml.safe_load(SERVED)
    for turn in [*served["champion"]["turns"], *served["candidate"]["turns"]]:
        if turn["role"] == "assistant":
            calls = "".join(f"<tool_call>{each}</tool_call>" for each in turn.get("tool_calls", ()))
            text = f"{turn['content']}{calls}<|end|>"
            turn["pieces"] = re.findall(r"</?tool_call>|<\|end\|>|\d| ?[A-Za-z]+|[^A-Za-z\d<]+", text)
    return {"scenario_id": f"desk-{index:05d}", "sample": 0, "category": "broken", "difficulty": "medium", **served}


def document(**changes: Any) -> ReportDocument:
    """The report of a run of 25 iterations that promoted its candidate."""
    parts = {
        "iterations": [iteration(index) for index in range(25)],
        "evaluation": evaluation(),
        "conversations": [pair(index) for index in range(6)],
    }
    return ReportDocument.model_validate({**yaml.safe_load(PROMOTED), **parts, **changes})


@pytest.fixture(scope="module")
def whole() -> str:
    """The page of the promoted run."""
    return render_page(document())


def visible(page: str) -> str:
    """Visible text of the page, approximately: without styles and tags, white space folded."""
    body = re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


def section(page: str, name: str) -> str:
    """Visible text of one section."""
    return visible(page.split(f'id="{name}"', 1)[1].split('<section class="part"', 1)[0])


def test_page_has_no_external_references(whole: str) -> None:
    """The page opens without a network: no address, no loaded file, only links to its parts and the data docs."""
    assert not re.search(r"https?:|//[a-z]|\bsrc=|@import|<link|<script|url\((?!#)", whole)
    links = set(re.findall(r'href="([^"#][^"]*)"', whole))
    assert links == {"./data_docs/index.html"}


def test_untrusted_text_is_escaped() -> None:
    """Markup typed by a customer, returned by a tool or sampled by the policy is shown, never run."""
    turns = [
        {"role": "user", "content": HOSTILE},
        {"role": "tool", "content": HOSTILE},
        {"role": "assistant", "content": HOSTILE, "pieces": [HOSTILE], "tool_calls": [HOSTILE]},
    ]
    side = {"policy": HOSTILE, "turns": turns, "stop": HOSTILE, "success": None, "checks": {HOSTILE: True}}
    hostile = {
        "scenario_id": HOSTILE,
        "sample": 0,
        "category": HOSTILE,
        "difficulty": HOSTILE,
        "champion": side,
        "candidate": side,
    }
    judged = evaluation(by_category=[comparison(f"$ {HOSTILE} $", 0.1, 0.2, 9)])
    page = render_page(document(conversations=[hostile], evaluation=judged, name=HOSTILE, config=HOSTILE))
    assert "<script" not in page
    assert "<img" not in page
    assert visible(page).count("alert('refund me')") >= 15


def test_the_explanation_has_each_diagnosis_and_measurement() -> None:
    """Kind, certainty, measurement, meaning, change and command. Texts of strangers, such as errors, are escaped."""
    texts = {name: f"its {name}" for name in ("measured", "meaning", "change")}
    diagnosis = {"kind": "turn_limit", "certainty": "likely", "command": f"grpo train {HOSTILE}", **texts}
    explanation = {"diagnoses": [diagnosis], "measurements": {"loss": "near 0"}, "unread": ["iteration 3: it is gone"]}
    page = render_page(document(explanation=explanation, iterations=[], evaluation=None))
    text = section(page, "explanation")
    assert "1 cause hinders learning" in text
    assert "1. turn limit likely" in text
    for part in (*texts.values(), HOSTILE, "near 0", "iteration 3: it is gone"):
        assert part in text
    assert "<script" not in page


def test_a_run_that_nothing_hinders_is_so_explained(whole: str) -> None:
    """A report without an explanation names the command that makes one."""
    explanation = {"diagnoses": [], "measurements": {}}
    page = render_page(document(explanation=explanation, iterations=[], evaluation=None))
    assert "Nothing that hinders learning was measured." in section(page, "explanation")
    assert "grpo explain support-desk" in section(whole, "explanation")


def test_link_to_data_docs_cannot_leave_the_folder() -> None:
    """A path that reads as an address or as a script becomes a file name."""
    for path in ("javascript:alert(1)", "//example.org/x"):
        page = render_page(document(ingestion={**yaml.safe_load(PROMOTED)["ingestion"], "data_docs": path}))
        assert re.search(r'href="\./(javascript%3Aalert%281%29|//example\.org/x)"', page)


def test_header_shows_the_result_with_its_intervals(whole: str) -> None:
    """Verdict, reason and one sentence with before, after and the paired difference."""
    header = visible(whole.split("<nav", 1)[0].split("<header>", 1)[1])
    assert "Promoted" in header
    assert "every gate passed" in header
    assert (
        "On 120 held-out scenarios, success went from 41.2% [35.2%, 47.2%] to 81.3% [75.3%, 87.3%]: "
        "a paired difference of +40.1 pp [+34.1 pp, +46.1 pp], intervals at 95% confidence."
    ) in header


@pytest.mark.parametrize(("verdict", "badge"), [("refuse", "Refused"), ("failed", "Failed")])
def test_badge_shows_the_verdict(verdict: str, badge: str) -> None:
    """A candidate that does not serve is not shown as if it did."""
    page = render_page(document(decision={"verdict": verdict, "reason": "too far"}))
    assert f'<span class="badge {verdict}">{badge}</span>' in page
    assert "Promoted" not in page
    assert "No gate was checked." in section(page, "gates")


@pytest.mark.parametrize(
    ("part", "rows"),
    [
        ("gates", ["improvement 0.341 > 0 ✓ pass lower bound", "length 1.23 ≤ 2.00 ✗ fail tokens over"]),
        ("heldout", ["All scenarios 120 41.2% [35.2%, 47.2%] 81.3% [75.3%, 87.3%] +40.1 pp [+34.1 pp, +46.1 pp]"]),
        ("heldout", ["missing 40 40.2% [34.2%, 46.2%] 71.1% [65.1%, 77.1%] +30.9 pp [+24.9 pp, +36.9 pp]"]),
        ("heldout", ["hard 60 24.2% [18.2%, 30.2%] 72.3% [66.3%, 78.3%] +48.1 pp [+42.1 pp, +54.1 pp]"]),
        ("heldout", ["pass@2 118 60.4% [54.4%, 66.4%] 92.1% [86.1%, 98.1%] +31.7 pp [+25.7 pp, +37.7 pp]"]),
        ("heldout", ["pass^2 118 21.3% [15.3%, 27.3%] 70.2% [64.2%, 76.2%] +48.9 pp [+42.9 pp, +54.9 pp]"]),
        ("heldout", ["0.352 nats per token", "episodes of the candidate 0.8%", "candidate over champion 1.23"]),
        ("learning", ["80.0% 0.900 1.00 40.0% 0.350 0.220 – 3.1% 0.734 0.000100 2.0% 0.0% 0.0% 14,224 0 0 0"]),
        ("data", ["1,503", "1,480", "Quarantined 23", "Training split 1,360", "Held-out split 120", "is unknown 6"]),
        ("time", ["ingest 1 1 0 ms 23 ms", "rollout 25 3 3 min 07 s 3 min 10 s", "1 h 30 min", "4.1%"]),
        ("lineage", ["Seed 7", "c0ffee01", "c0de0002", "5ce0a203", "ba5e0004", "flat within 2e-06", "torch 2.13.0"]),
        ("config", ["name: support-desk rollout: group_size: 8"]),
    ],
)
def test_each_section_shows_its_numbers(whole: str, part: str, rows: list[str]) -> None:
    """Each table shows the document's values beside the names they belong to."""
    text = section(whole, part)
    assert [row for row in rows if row not in text] == []


def test_conversation_shows_both_episodes_with_rewards() -> None:
    """Words, calls as code, checks and reward of the champion, then of the candidate."""
    text = section(render_page(document(conversations=[pair()])), "conversations")
    before, after = text.split("After b7701e5a")
    for fact in ("✗ no success", 'look_up(order="1234")', "✗ honest", "✓ closed", "reward 0.312", "checks 0.500"):
        assert fact in before
    for fact in ("✓ success", "The number is 8812.", 'replace(order="8812")', "✓ honest", "reward 0.988"):
        assert fact in after


def test_every_trained_token_is_marked() -> None:
    """A reader sees where one token ends and the next begins, its leading space included."""
    page = render_page(document(conversations=[pair()]))
    marked = re.findall(r'<p class="tokens">(.*?)</p>', page)
    assert (
        "<span>What</span><span> is</span><span> your</span><span> order</span><span> number</span>"
        '<span>?</span><span class="control">&lt;|end|&gt;</span>'
    ) in marked


def test_missing_parts_are_named() -> None:
    """A run that failed before training names the missing parts; a missing number is not replaced."""
    parts = yaml.safe_load(PROMOTED)
    page = render_page(
        document(
            decision={"verdict": "failed", "reason": "no informative group in 3 iterations"},
            ingestion={**parts["ingestion"], "data_docs": None, "reasons": {}},
            lineage={**parts["lineage"], "model_version": None, "package_versions": {}},
            **{"iterations": (), "conversations": (), "stages": (), "evaluation": None},
        )
    )
    text = visible(page)
    for sentence in (
        "No candidate was evaluated.",
        "No gate was checked.",
        *("Nothing was evaluated on held-out scenarios.", "No iteration was trained.", "No stage was timed."),
        *("No conversation was recorded.", "The reasons for quarantine were not recorded."),
        "none was registered",
    ):
        assert sentence in text
    assert "Validation report" not in text
    assert "<svg" not in page


def test_unverified_runs_show_rewards_without_success() -> None:
    """Without verification success is a dash, its curve a sentence, and rewards are not percentages."""
    talk = pair()
    talk["champion"].update(success=None, checks={}, reward=None, breakdown={})
    page = render_page(
        document(iterations=[iteration(0, success=None)], evaluation=evaluation(metric="reward"), conversations=[talk])
    )
    result = "reward went from 0.412 [0.352, 0.472] to 0.813 [0.753, 0.873]: a paired difference of +0.401"
    assert result in visible(page)
    assert "1 iteration of rollout" in page
    assert "Rollout success – → –" in section(page, "learning")
    assert "Nothing to draw: the environment verified no episode." in section(page, "learning")
    assert "not verified" in section(page, "conversations")
    assert "reward none" in section(page, "conversations")


def test_calls_that_were_never_logged_are_shown_for_replays_alone(whole: str) -> None:
    """Of how many, for champion and candidate; nothing in an environment that replays no log."""
    counts = {"champion": {"calls": 1200, "unrecorded": 31}, "candidate": {"calls": 1180, "unrecorded": 4}}
    text = section(render_page(document(evaluation=evaluation(replays=counts))), "heldout")
    assert "Tool calls of the champion that were never logged 31 of 1,200" in text
    assert "Tool calls of the candidate that were never logged 4 of 1,180" in text
    assert "never logged" not in section(whole, "heldout")


def test_pass_rates_are_percentages_and_absent_without_verification() -> None:
    """A reward is a number, pass@k is still a percentage; without outcomes the row is absent."""
    by_reward = section(render_page(document(evaluation=evaluation(metric="reward"))), "heldout")
    assert "pass@2 118 60.4% [54.4%, 66.4%]" in by_reward
    unverified = evaluation(metric="reward", pass_at_k=(), pass_hat_k=())
    assert "pass@" not in section(render_page(document(evaluation=unverified)), "heldout")


def test_fine_tuning_is_shown_with_all_three_policies() -> None:
    """Base, fine-tuned and candidate with their intervals; a run without it has no such part."""

    def measured(mean: float) -> dict[str, Any]:
        interval = {"mean": mean, "low": mean - 0.05, "high": mean + 0.05, "count": 120}
        return {"name": "all", "success": interval, "reward": {**interval, "mean": mean + 0.1}}

    tuning = {
        "demonstrations": 42,
        "losses": [2.5, 1.25, 0.31],
        "policy": "f17e",
        **{"base": measured(0.05), "fine_tuned": measured(0.2), "candidate": measured(0.85)},
    }
    text = section(render_page(document(fine_tuning=tuning)), "heldout")
    assert "fine-tuning on 42 demonstrations" in text
    assert "3 optimizer steps took the loss on the agent's tokens from 2.50 to 0.310 nats" in text
    assert "Base 120 5.0% [0.0%, 10.0%] 0.150 [" in text
    assert "After fine-tuning 120 20.0% [15.0%, 25.0%]" in text
    assert "After GRPO 120 85.0% [80.0%, 90.0%]" in text
    assert "fine-tuning" not in section(render_page(document()), "heldout")


def test_dpo_is_shown_with_its_accuracies() -> None:
    """On the pairs before and after; a run without it has no such part."""
    interval = {"mean": 0.4, "low": 0.35, "high": 0.45, "count": 120}
    measured = {"name": "all", "success": interval, "reward": None}
    before = {"loss": 0.693147, "margin": 0.0, "reward_accuracy": 0.5, "ranking_accuracy": 0.25}
    after = {"loss": 0.5, "margin": 0.7, "reward_accuracy": 0.9, "ranking_accuracy": 0.625}
    tuning = {
        "pairs": 42,
        "losses": [0.69, 0.6],
        "policy": "f17e",
        "before": before,
        "after": after,
        **dict.fromkeys(("reference", "tuned", "candidate"), measured),
    }
    text = section(render_page(document(preference_tuning=tuning)), "heldout")
    assert "DPO on 42 preference pairs" in text
    assert "the loss went from 0.693 to 0.500 nats per pair" in text
    assert "the accuracy of the implicit reward from 50.0% to 90.0%" in text
    assert "likelier one from 25.0% to 62.5%" in text
    assert "After DPO 120 40.0% [35.0%, 45.0%] –" in text
    assert "DPO" not in section(render_page(document()), "heldout")


def test_highly_correlated_components_are_named() -> None:
    """Those of the last iteration; a run without such a pair has no such line."""
    pages = [
        render_page(document(iterations=[iteration(0, highly_correlated=pairs)])) for pairs in (["a and b (+0.97)"], [])
    ]
    assert "Highly correlated reward components in the last iteration: a and b (+0.97)" in visible(pages[0])
    assert "Highly correlated" not in visible(pages[1])


def test_replies_that_ignore_the_input_and_misleading_turn_rewards_are_named_with_their_iteration() -> None:
    """Correlations that are above 0, or may be, are not; a healthy run has neither line."""
    wrong = {
        **{"mutual_information": 0.0004, "input_agnostic": True, "entropy": 1.5},
        **{"turn_reward_correlation": -0.5, "turn_reward_low": -0.7, "turn_reward_high": -0.2},
    }
    open_question = {"turn_reward_correlation": -0.5, "turn_reward_low": -0.7, "turn_reward_high": 0.2}
    rows = [iteration(0), iteration(1, **wrong), iteration(2, mutual_information=0.4, **open_question)]
    text = section(render_page(document(iterations=rows)), "learning")
    assert "Iteration 1: the replies do not depend on the scenario: their mutual information is 0.000 nats" in text
    assert "at an entropy of 1.5 nats per token" in text
    assert (
        "Iteration 1: turn rewards mislead: within groups their correlation with success is -0.50 [-0.70, -0.20]"
        in text
    )
    assert "Iteration 0:" not in text
    assert "Iteration 2:" not in text


def test_a_continuous_rollout_shows_its_staleness_drops_and_overlap() -> None:
    """Means .5 and 1.5 are 1 on average. Only the second window has a share of time in which both sides were busy."""
    first = {"staleness_mean": 0.5, "staleness_max": 1, "dropped_episodes": 3, "busy_share": None}
    second = {"staleness_mean": 1.5, "staleness_max": 4, "dropped_episodes": 2, "busy_share": 0.75}
    page = render_page(document(iterations=[iteration(0, **first), iteration(1, **second)]))
    text = section(page, "learning")
    assert "The oldest token of an episode was 1.00 updates old on average, and 4 at most." in text
    assert "5 episodes were dropped as too stale." in text
    assert "Rollout and update were busy at once in 75.0% of the time." in text
    assert "Staleness" in text
    alone = section(render_page(document(iterations=[iteration(0, **first)])), "learning")
    assert "and 1 at most. 3 episodes were dropped as too stale. " in " ".join(alone.split()) + " "
    assert "busy at once" not in alone
    assert "Staleness" not in visible(render_page(document()))


def test_the_distance_to_a_teacher_is_drawn_if_there_is_one() -> None:
    """As a curve of its own."""
    page = render_page(document(iterations=[iteration(index, teacher_kl=0.5 - 0.1 * index) for index in range(3)]))
    assert "KL to the teacher" in section(page, "learning")
    assert "KL to the teacher" not in visible(render_page(document()))


def test_the_levels_of_a_curriculum_are_shown() -> None:
    """Those of the last iteration."""
    rows = [iteration(0, open_levels=["easy"]), iteration(1, open_levels=["easy", "hard"])]
    assert "opened in the last iteration: easy, hard." in visible(render_page(document(iterations=rows)))
    assert "curriculum" not in visible(render_page(document()))


def test_numbers_that_are_not_finite_are_refused() -> None:
    """JSON cannot hold them, so a document that has one is not made."""
    with pytest.raises(ValueError, match="finite"):
        ReportDocument.model_validate({**document().model_dump(), "wall_s": float("nan")})


def test_same_document_gives_the_same_bytes(whole: str) -> None:
    """A report drawn again is the same file: no date, no random identifier."""
    assert render_page(document()) == whole
    assert plot_png(document()) == plot_png(document())


def test_figures_of_a_page_share_no_identifier(whole: str) -> None:
    """One figure's clip path or marker never stands in for another's."""
    identifiers = re.findall(r'\bid="([^"]+)"', whole)
    assert len(identifiers) > 30
    assert len(identifiers) == len(set(identifiers))


def test_figures_follow_the_dark_mode_of_the_page(whole: str) -> None:
    """Axes, grid and both policies take their colours from variables that the dark page sets anew."""
    styles, figures = whole.split("</style>", 1)
    used = set(re.findall(r"var\((--[a-z]+), #", figures))
    assert used == {"--ink", "--muted", "--line", "--champion", "--candidate"}
    dark = styles.split("prefers-color-scheme: dark", 1)[1]
    assert all(f"{variable}:" in dark for variable in used)


def test_page_of_a_long_run_stays_small(whole: str) -> None:
    """25 iterations and 6 pairs of conversations fit into 600 kB."""
    assert len(whole.encode()) < 600_000


@pytest.mark.parametrize("changes", [{}, {"evaluation": None, "iterations": ()}], ids=["whole", "nothing trained"])
def test_overview_is_a_picture(changes: dict[str, Any]) -> None:
    """The trackers get a PNG of 1400 by 560 pixels, whatever the run came to."""
    picture = plot_png(document(**changes))
    assert picture.startswith(b"\x89PNG")
    # bytes 16 to 24 of the header: width 10 in * 140 dpi, height 4 in * 140 dpi
    assert (int.from_bytes(picture[16:20]), int.from_bytes(picture[20:24])) == (1400, 560)


def test_overview_shows_the_result() -> None:
    """Another result gives another picture."""
    other = evaluation(by_category=[comparison("return", 0.9, 0.1, 40)])
    assert plot_png(document()) != plot_png(document(evaluation=other))
    assert plot_png(document()) != plot_png(document(name="another desk"))


@pytest.mark.parametrize(
    ("write", "value", "shown"),
    [
        *((number, None, "–"), (number, 0.0, "0"), (number, 0.41666, "0.417"), (number, -2.0, "−2.00")),
        *((number, 99.96, "100"), (number, 12345.6, "12,346"), (number, 2e-6, "2.00e-06")),
        *((percent, None, "–"), (percent, 0.41666, "41.7%"), (percent, -0.0001, "0.0%"), (percent, 1.0, "100.0%")),
        *((duration, 0.0234, "23 ms"), (duration, 12.34, "12.3 s"), (duration, 59.97, "1 min 00 s")),
        *((duration, 187.2, "3 min 07 s"), (duration, 5400.0, "1 h 30 min")),
        (call, '{"name": "refund", "arguments": {"order": "7", "amount": 9}}', 'refund(order="7", amount=9)'),
        (call, '{"name": "greet", "arguments": {"name": "J\\u00f6rg"}}', 'greet(name="Jörg")'),
        *((call, "refund 7", "refund 7"), (call, '["refund"]', '["refund"]')),
    ],
)
def test_values_are_formatted(write: Callable[[Any], str], value: Any, shown: str) -> None:
    """Three significant digits, percent with one decimal, time in its best unit, calls as code; zero has no sign."""
    assert write(value) == shown


def test_importing_grpo_loads_no_plotting() -> None:
    """Code that only reads artifacts does not pay for matplotlib."""
    program = "import sys, grpo, grpo.evaluation, grpo.evaluation.schema; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_browser_draws_the_page(whole: str, tmp_path: Path) -> None:
    """A real browser builds the whole page, figures and last part included, and paints it."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    page, picture = tmp_path / "report.html", tmp_path / "page.png"
    page.write_text(whole, encoding="utf-8")
    command = [chromium, *BROWSER, f"--user-data-dir={tmp_path / 'profile'}"]
    dom = subprocess.run(
        [*command, "--dump-dom", page.as_uri()], check=True, capture_output=True, text=True, timeout=240
    ).stdout
    assert dom.count("<svg") == dom.count("</svg>") == 7  # held-out results and six curves
    assert dom.rstrip().endswith("</body></html>")
    assert section(dom, "config")
    subprocess.run([*command, f"--screenshot={picture}", page.as_uri()], check=True, capture_output=True, timeout=240)
    painted = picture.read_bytes()
    assert (int.from_bytes(painted[16:20]), int.from_bytes(painted[20:24])) == (1200, 3000)
    assert len(painted) > 100_000  # an empty page of that size packs into a few kB


def test_each_curve_is_headed_by_its_name_its_meaning_and_its_ends() -> None:
    """The first iteration → the last, shares in percent: 2 % truncated and 1 % failed are 3 %."""
    page = render_page(document(iterations=[iteration(0), iteration(24, failed_share=0.01)]))
    headings = [visible(part.split("</figcaption>")[0]) for part in page.split("<figcaption>")[1:]]
    assert headings == [
        "Reward 0.450 → 0.850 Mean over rollouts, and its components",
        "Rollout success 40.0% → 80.0% Share of verified successes",
        "KL to the base 0 → 0.350 Nats per token",
        "Entropy 0.420 → 0.220 Nats per token",
        "Informative groups 80.0% → 40.0% Share of groups with different rewards",
        "Truncated and failed 2.0% → 3.0% Share of episodes",
    ]
    figures = re.findall(r'aria-label="([^"]+) by iteration"', page)
    names = ["Reward and its components", "Rollout success", "KL to the base policy", "Entropy", "Informative groups"]
    assert figures == [*names, "Truncated and failed episodes"]


def test_success_is_drawn_where_any_iteration_was_verified() -> None:
    """The first was not: its end is a dash, and the curve is there."""
    page = render_page(document(iterations=[iteration(0, success=None), iteration(1)]))
    assert "Rollout success – → 41.7%" in section(page, "learning")
    assert "Nothing to draw" not in page


@pytest.mark.parametrize(
    ("champion", "candidate", "widths"),
    [
        ({"checks": 0.5}, {}, ["50.0%"]),
        ({"checks": 1.0, "length": -4.0}, {"checks": 2.0}, ["25.0%", "100.0%", "50.0%"]),
        ({"checks": 2.0}, {"checks": 8.0}, ["25.0%", "100.0%"]),
    ],
)
def test_a_bar_is_full_at_1_or_at_the_largest_component_of_both_sides(
    champion: dict[str, float], candidate: dict[str, float], widths: list[str]
) -> None:
    """Half of 1 is half a bar; beside a component of -4 one of 1 is a quarter."""
    shown = pair()
    shown["champion"]["breakdown"], shown["candidate"]["breakdown"] = champion, candidate
    page = render_page(document(conversations=[shown]))
    assert re.findall(r'<div class="(?:minus)?" style="width: ([^"]+)">', page) == widths


def test_a_template_writes_values_by_the_names_of_the_filters(tmp_path: Path) -> None:
    """Of a folder of its own and of the report; text is escaped, blocks leave no lines, the last line stays."""
    (tmp_path / "own.j2").write_text(
        "{% if true %}\n  {% set x = 1 %}\n{{ 0.5 | percent }} {{ 0.5 | number }} {{ 1234 | count }} "
        "{{ 0.5 | duration }} {{ '[]' | call }} {{ 'a b' | relative }} {{ '<b>' }}\n{% endif %}\nend\n"
    )
    environment = templates(tmp_path)
    assert environment.get_template("own.j2").render() == "50.0% 0.500 1,234 500 ms [] ./a%20b &lt;b&gt;\nend\n"
    assert environment.get_template("style.css.j2")
    with pytest.raises(UndefinedError, match="unknown"):
        environment.from_string("{{ unknown }}").render()


def test_every_part_with_numbers_has_its_figure() -> None:
    """Held-out results and six curves; without an evaluation the curves alone."""
    assert render_page(document()).count("<svg") == 7
    assert render_page(document(evaluation=None)).count("<svg") == 6


def test_a_loss_has_negative_percentage_points() -> None:
    """From 50 % to 40 %: -10 points; of rewards -.1."""
    worse = comparison("all", 0.5, 0.4, 10)
    by_success, by_reward = (
        visible(render_page(document(evaluation=evaluation(overall=worse, metric=metric))))
        for metric in ("success", "reward")
    )
    assert "a paired difference of −10.0 pp [−16.0 pp, −4.0 pp], intervals at 95% confidence" in by_success
    assert "a paired difference of −0.100 [−0.160, −0.0400], intervals at 95% confidence" in by_reward
