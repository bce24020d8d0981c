"""Checks of how episodes end: failures, missing scores, limits, tool calls, and replies that code overrides."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence

from grpo.diagnosis.evidence import ENOUGH, FINE_TUNED, RunEvidence, share, success_share
from grpo.evaluation.explanation import Diagnosis
from grpo.rewards.rollout_summary import CallCounts
from grpo.trajectories import Trajectory

FAILED = 0.02
"""Most failed episodes: the default of the gate `failure`. Above `rollout.error_budget`, 5 %, the run itself stops."""
UNSCORED = 0.02
"""Most finished episodes without a reward. An episode without a reward is left out of its group."""
TRUNCATED = 0.2
"""Most truncated episodes. At 1 in 5, most groups of 8 hold one, so that the limit decides many advantages."""
AT_TURN_LIMIT = 0.5
"""Most episodes at the limit of turns, in a run that does not learn and …"""
MIXED_GROUPS = 0.5
"""… in which fewer groups than this have different rewards. In tasks that end only with a success, each failure is at
the limit, so the limit is a fault only if it makes the episodes of a group alike."""
MALFORMED = 0.1
"""Most replies with a call that cannot be parsed, of those with a call. Trained models write under 1 % of them."""
TOOL_ERRORS = 0.5
"""Most tool results that are errors. Below it, most calls do something, so that the reward can tell calls apart."""
OVERRIDDEN = 0.5
"""Most turns of the agent that its own code changed. At more, the greater part of the episode has no loss."""
_TIMEOUTS = ("turn_timeout_s", "step_timeout_s", "episode_timeout_s", "stage_timeout_s")
_QUOTED = 150  # characters of a quoted error


def failed_episodes(evidence: RunEvidence) -> Diagnosis | None:
    """Episodes that an error or a timeout ended."""
    failed = [t for t in evidence.last if t.stop == "failed"]
    value = len(failed) / max(1, len(evidence.last))
    if len(evidence.last) < ENOUGH or value <= FAILED:
        return None
    error = _most_common(t.error or "no message" for t in failed)
    timeout = next((f"rollout.{name}" for name in _TIMEOUTS if name in error), None)
    longer = None if timeout is None else 2 * float(evidence.setting(timeout, 60.0))
    return Diagnosis(
        kind="failed_episodes",
        certainty="certain",
        measured=f"{value:.1%} of {len(evidence.last)} episodes failed (bound {FAILED:.0%}), most often by: {error}",
        meaning="A failed episode has no reward, so the tokens and the time that it took teach nothing.",
        change="correct the error in the environment, its tools or its user; no setting helps"
        if timeout is None
        else f"raise {timeout} to {longer:g}, or make the environment answer faster",
        command=evidence.show("failed") if timeout is None else evidence.train(f"{timeout}={longer:g}"),
    )


def unscored_episodes(evidence: RunEvidence) -> Diagnosis | None:
    """Finished episodes that the reward could not score."""
    finished = [t for t in evidence.last if t.stop != "failed"]
    unscored = [t for t in finished if t.total_reward is None]
    value = len(unscored) / max(1, len(finished))
    if len(finished) < ENOUGH or value <= UNSCORED:
        return None
    unjudged = _most_common(part for t in unscored if t.outcome is not None for part in t.outcome.unjudged)
    error = _most_common(t.error or "no message" for t in unscored)
    return Diagnosis(
        kind="unscored_episodes",
        certainty="certain",
        measured=f"{value:.1%} of {len(finished)} finished episodes have no reward (bound {UNSCORED:.0%}), most often "
        f"because of: {unjudged or error}",
        meaning="An episode without a reward is left out of its group: it costs a rollout and gives no gradient.",
        change="set judge, which judges assertions, or use a reward that asks less, such as checks"
        if unjudged
        else "correct the reward, or mark the component that fails with optional: true",
        command=evidence.show(),
    )


def truncation(evidence: RunEvidence) -> Diagnosis | None:
    """Episodes that the limit of tokens of a turn or of the context ended."""
    truncated = [t for t in evidence.last if t.stop == "truncated"]
    value = len(truncated) / max(1, len(evidence.last))
    if len(evidence.last) < ENOUGH or value <= TRUNCATED:
        return None
    most = int(evidence.setting("rollout.max_new_tokens", 64))
    by_turn = share(_last_reply_tokens(t) >= most for t in truncated) >= 0.5  # else by the context
    setting, limit = (
        ("max_new_tokens", most) if by_turn else ("max_context", int(evidence.setting("rollout.max_context", 512)))
    )
    truncated_success = success_share(truncated)
    other_success = success_share(t for t in evidence.last if t.stop != "truncated")
    known = truncated_success is not None and other_success is not None
    result = f"; success {truncated_success:.0%} in them, {other_success:.0%} in the others" if known else ""
    return Diagnosis(
        kind="truncation",
        certainty="certain" if not truncated_success else "likely",
        measured=f"{value:.1%} of {len(evidence.last)} episodes were truncated (bound {TRUNCATED:.0%}), by "
        f"rollout.{setting} {limit}{result}",
        meaning="A truncated reply fails whatever it was about to do, so the reward measures its length.",
        change=f"raise rollout.{setting} to {2 * limit}, or ask for shorter replies in the system prompt",
        command=evidence.train(f"rollout.{setting}={2 * limit}"),
    )


def turn_limit(evidence: RunEvidence) -> Diagnosis | None:
    """Episodes that the environment's limit of turns ended."""
    ended = [t for t in evidence.last if t.stop == "turn_limit"]
    value = len(ended) / max(1, len(evidence.last))
    if len(evidence.last) < ENOUGH or value <= AT_TURN_LIMIT or evidence.is_learning:
        return None
    if evidence.informative_share >= MIXED_GROUPS:
        return None
    limit = evidence.setting("environment.max_turns")  # an environment of the user's own may have none
    more = "the limit of turns of the environment" if limit is None else f"environment.max_turns to {2 * limit}"
    return Diagnosis(
        kind="turn_limit",
        certainty="likely" if not success_share(ended) else "possible",
        measured=f"{value:.1%} of {len(evidence.last)} episodes reached the limit of turns (bound "
        f"{AT_TURN_LIMIT:.0%}), and {evidence.informative_share:.1%} of the groups are informative",
        meaning="Episodes that end before the task can be done fail alike, so their rewards do not differ.",
        change=f"raise {more}, or start with scenarios that need fewer turns",
        command=evidence.show("turn_limit") if limit is None else evidence.train(f"environment.max_turns={2 * limit}"),
    )


def malformed_calls(evidence: RunEvidence) -> Diagnosis | None:
    """Tool calls that cannot be parsed."""
    counts = CallCounts.of(evidence.last)
    attempts = counts.parsed + counts.malformed
    value = counts.malformed / max(1, attempts)
    if attempts < ENOUGH or value <= MALFORMED:
        return None
    reason = _most_common(m.malformed for t in evidence.last for m in t.messages if m.malformed)
    return Diagnosis(
        kind="malformed_calls",
        certainty="certain",
        measured=f"{value:.1%} of {attempts} tool calls cannot be parsed (bound {MALFORMED:.0%}), most often: {reason}",
        meaning="The environment answers such a call with an error, so the reward measures the format.",
        change="fine-tune on demonstrations in the call format of the model first (sft), or use another model",
        command=evidence.train(FINE_TUNED),
    )


def tool_errors(evidence: RunEvidence) -> Diagnosis | None:
    """Tool results that are errors, although the calls were parsed."""
    messages = [message for trajectory in evidence.last for message in trajectory.messages]
    calling = sum(bool(message.tool_calls) for message in messages)
    results = [m.content for m in messages if m.role == "tool"]
    errors = [error for content in results if (error := _error_of(content)) is not None]
    value = len(errors) / max(1, calling, len(results))  # a call that ends the episode has no result
    if calling < ENOUGH or value <= TOOL_ERRORS:
        return None
    return Diagnosis(
        kind="tool_errors",
        certainty="likely",
        measured=f"{value:.1%} of the replies with calls get an error as result (bound {TOOL_ERRORS:.0%}), most often: "
        f"{_most_common(errors)}",
        meaning="Either the tools fail, or the policy does not know their names and arguments, so no call changes the "
        "state that the reward checks.",
        change="read the errors; correct the tools, or state their names and arguments in the system prompt or in sft",
        command=evidence.show(),
    )


def overridden_replies(evidence: RunEvidence) -> Diagnosis | None:
    """Turns that the agent's own code changed after sampling."""
    turns = sum(m.role == "assistant" for t in evidence.last for m in t.messages)
    overridden = sum(t.overridden_turns for t in evidence.last)
    if turns < ENOUGH or overridden / turns <= OVERRIDDEN:
        return None
    return Diagnosis(
        kind="overridden_replies",
        certainty="certain",
        measured=f"{overridden / turns:.1%} of {turns} replies were changed by the agent's own code after they were "
        f"sampled (bound {OVERRIDDEN:.0%})",
        meaning="The reward judges the changed text, and the sampled tokens have no loss, so they teach nothing.",
        change="let process_turn and generate_response of the agent return their argument unchanged while it trains",
        command=evidence.show(),
    )


CHECKS = (
    failed_episodes, unscored_episodes, overridden_replies, malformed_calls, truncation, tool_errors, turn_limit,
)  # fmt: skip


def _last_reply_tokens(trajectory: Trajectory) -> int:
    """Tokens of the last reply."""
    return next((t.stop - t.start for t in reversed(trajectory.turns) if t.message.role == "assistant"), 0)


def _error_of(content: str) -> str | None:
    """Error in a tool result in JSON, or in the first of several results that has one."""
    try:
        value = json.loads(content)
    except ValueError:
        return None
    results: Sequence[object] = value if isinstance(value, list) else [value]
    return next((str(result["error"]) for result in results if isinstance(result, dict) and "error" in result), None)


def _most_common(texts: Iterable[str | None]) -> str:
    """Most frequent text, shortened to one line. Empty if there is none."""
    counted = Counter(" ".join(text.split())[:_QUOTED] for text in texts if text)
    return counted.most_common(1)[0][0] if counted else ""
