"""Planted failures by the diagnosis that they need, and healthy runs."""

from __future__ import annotations

from typing import Any

from grpo.trajectories import Outcome
from tests.grpo.diagnosis.planted import REFUSED, Place, Plant, flat
from tests.grpo.evaluation.test_html_report import evaluation

SLOW = "TimeoutError: turn 2 of the policy took longer than 120.0 s (rollout.turn_timeout_s); raise it"
BROKEN = '{"error": "the warehouse does not answer"}'
MALFORMED = {"tool_calls": (), "malformed": "the call is not valid JSON"}
TRAINED = {"decision": {"verdict": "promote", "reason": "every gate passed"}}


def _failed(place: Place, success: bool) -> dict[str, Any]:
    return {"stop": "failed", "error": SLOW, "outcome": None, "terminal_reward": None} if place.draw > 0.8 else {}


def _unscored(place: Place, success: bool) -> dict[str, Any]:
    return {"error": "unscored: the judge did not answer", "terminal_reward": None} if place.draw > 0.7 else {}


def _overridden(place: Place, success: bool) -> dict[str, Any]:
    return {"is_masked": place.draw < 0.2}


def _malformed(place: Place, success: bool) -> dict[str, Any]:
    return {"call": MALFORMED, "result": '{"error": "the call is not valid JSON"}'} if place.draw > 0.4 else {}


def _truncated(place: Place, success: bool) -> dict[str, Any]:
    reply = [100 + place.scenario % 37] * (60 if success else 80)
    return {"stop": "terminated" if success else "truncated", "reply": reply}


def _tool_errors(place: Place, success: bool) -> dict[str, Any]:
    return {"result": BROKEN}


def _turn_limit(place: Place, success: bool) -> dict[str, Any]:
    return {} if success else {"stop": "turn_limit", "breakdown": {"task": 0.0, "checks": 0.0}}


def _constant(place: Place, success: bool) -> dict[str, Any]:
    return {"breakdown": {"task": 0.5, "checks": 0.5}}


def _contradicting(place: Place, success: bool) -> dict[str, Any]:
    return {"breakdown": {"task": float(success), "brevity": 1.0 - success}}


def _hacked(place: Place, success: bool) -> dict[str, Any]:
    return {"breakdown": {"task": float(success), "keywords": place.share + 0.05 * place.draw}}


def _dominated(place: Place, success: bool) -> dict[str, Any]:
    return {"breakdown": {"task": float(success), "length": 20 * float(place.rng.random())}}


def _tiny(place: Place, success: bool) -> dict[str, Any]:
    return {"breakdown": {"task": 0.9, "checks": 0.01 * float(place.rng.random())}}


def _never_earned(place: Place, success: bool) -> dict[str, Any]:
    return {"breakdown": {"task": float(success), "citations": 0.0}}


def _same_reply(place: Place, success: bool) -> dict[str, Any]:
    alike = place.scenario % 2 == 0
    return {
        "reply": [100 + place.scenario % 37, 7, 8],
        "breakdown": {"task": float(alike), "checks": 0.5 * alike},
        "outcome": Outcome.of({"end_state": alike}),
    }


def _any_reply(place: Place, success: bool) -> dict[str, Any]:
    return {"reply": [int(token) for token in place.rng.integers(10, 60, size=8)]}


def _alike_in_group(place: Place, success: bool) -> dict[str, Any]:
    solved = place.scenario % 2 == 0
    return {"breakdown": {"task": float(solved), "checks": 0.5 * solved}, "outcome": Outcome.of({"end_state": solved})}


def _partial_credit(place: Place, success: bool) -> dict[str, Any]:
    return {"breakdown": {"task": 0.0, "checks": place.draw}}


def _big_rewards(place: Place, success: bool) -> dict[str, Any]:
    return {"breakdown": {"task": 2.0 * success, "checks": place.draw}}


def _copied_prompt(place: Place, success: bool) -> dict[str, Any]:
    return {"prompt": [1, 1000 + place.scenario, 2]} if place.part == "after" and place.scenario % 2 else {}


def _new_category(place: Place, success: bool) -> dict[str, Any]:
    return {"category": "new"} if place.part == "after" and place.scenario % 2 else {}


def _memorized(place: Place) -> float:
    return 0.2 if place.part == "after" else 0.3 + 0.5 * place.share


def _collapsing(place: Place) -> float:
    return 0.7 - 0.6 * abs(place.share - 0.5) * 2


def _falling(place: Place) -> float:
    return 0.6 - 0.5 * place.share


def _undecided(difference: float, width: float) -> dict[str, Any]:
    measured = evaluation()
    measured["overall"]["difference"] = {
        "mean": difference, "low": difference - width, "high": difference + width, "count": 40
    }  # fmt: skip
    return measured


FAILURES: dict[str, Plant] = {
    "failed_episodes": Plant(change=_failed),
    "unscored_episodes": Plant(change=_unscored),
    "overridden_replies": Plant(success=flat, change=_overridden),
    "malformed_calls": Plant(success=flat, change=_malformed),
    "truncation": Plant(success=flat, change=_truncated, settings={"rollout": {"max_new_tokens": 40}}),
    "tool_errors": Plant(success=lambda place: 0.05, change=_tool_errors),
    "turn_limit": Plant(success=lambda place: 0.06, change=_turn_limit),
    "constant_reward": Plant(success=flat, change=_constant),
    "contradicting_reward": Plant(success=_falling, change=_contradicting, weights={"task": 0.3, "brevity": 0.7}),
    "reward_hacking": Plant(success=_falling, change=_hacked, weights={"task": 0.3, "keywords": 0.7}),
    "clipped_rewards": Plant(
        success=flat,
        change=_big_rewards,
        weights={"task": 1.0, "checks": 1.0},
        settings={"training": {"reward_clip": 0.5}},
    ),
    "dominating_component": Plant(success=flat, change=_dominated, weights={"task": 0.7, "length": 0.3}),
    "nearly_equal_rewards": Plant(success=lambda place: None, change=_tiny),
    "constant_component": Plant(success=flat, change=_never_earned, weights={"task": 0.5, "citations": 0.5}),
    "solved_at_start": Plant(success=lambda place: 0.98),
    "no_success": Plant(success=lambda place: 0.0, change=_partial_credit),
    "identical_replies": Plant(success=flat, change=_same_reply, settings={"rollout": {"temperature": 0.1}}),
    "input_agnostic": Plant(success=flat, change=_any_reply),
    "entropy_collapse": Plant(success=flat, metrics=lambda index: {"entropy": 1.0 * 0.4**index}),
    "entropy_growth": Plant(
        success=flat,
        settings={"training": {"entropy_coefficient": 0.05}},
        metrics=lambda index: {"entropy": 0.5 + 0.4 * index},
    ),
    "uninformative_groups": Plant(success=flat, change=_alike_in_group),
    "mismatched_logprobs": Plant(
        success=flat,
        settings={"training": {"importance_sampling_cap": 2.0}, "rollout": {"staleness": 1}},
        metrics=lambda index: {"mismatch_kl": 0.009},
    ),
    "stale_episodes": Plant(
        success=flat,
        settings={
            "training": {"importance_sampling_cap": 2.0},
            "rollout": {"mode": "continuous", "max_staleness": 1},
        },
        metrics=lambda index: {"staleness_mean": 0.9, "staleness_max": 1, "dropped_episodes": 20, "busy_share": 0.8},
    ),
    "rejected_steps": Plant(
        success=flat,
        settings={"training": {"algorithm": "trpo", "learning_rate": 1e-4}},
        metrics=lambda index: {"step_kl": 0.0 if index % 4 else 0.01},
    ),
    "zero_gradient": Plant(success=flat, metrics=lambda index: {"gradient_norm": 0.0, "kl_to_base": 0.0}),
    "learning_rate_too_small": Plant(
        success=flat, settings={"training": {"learning_rate": 1e-8}}, metrics=lambda index: {"kl_to_base": 1e-7 * index}
    ),
    "learning_rate_too_large": Plant(
        success=_collapsing,
        settings={"training": {"learning_rate": 1e-2}},
        metrics=lambda index: {"kl_to_base": 0.3 * index, "entropy": 1 + 0.4 * index},
    ),
    "clipping": Plant(success=flat, settings={"training": {"epochs": 8}}, metrics=lambda index: {"clip_share": 0.55}),
    "kl_runaway": Plant(success=flat, metrics=lambda index: {"kl_to_base": 0.6 * index}),
    "few_scenarios": Plant(success=_memorized, train=6, iterations=12, document=TRAINED),
    "overfitting": Plant(success=_memorized, document=TRAINED),
    "contamination": Plant(change=_copied_prompt, document=TRAINED),
    "unseen_categories": Plant(change=_new_category, document=TRAINED),
    "small_evaluation": Plant(document={"decision": REFUSED, "evaluation": _undecided(0.08, 0.11)}),
    "unfinished": Plant(
        success=lambda place: 0.05 + 0.55 * place.share,
        iterations=16,
        document={"decision": REFUSED, "evaluation": _undecided(0.02, 0.05)},
    ),
}


def _settled(index: int) -> dict[str, Any]:
    """A run that solves its task: few informative groups, little entropy, and no gradient to speak of at the end."""
    return {
        "entropy": 0.27 * 0.75**index,
        "kl_to_base": 0.03 * index,
        "gradient_norm": 0.1,
        "loss": -1e-8,
        "clip_share": 0.0,
    }


def _long_ways(place: Place, success: bool) -> dict[str, Any]:
    """A grid in which each failure ends at the limit of turns."""
    return {} if success else {"stop": "turn_limit"}


def _first_views(place: Place, success: bool) -> dict[str, Any]:
    """Generated worlds that look alike at first, so that held-out scenarios have prompts of the training."""
    world = f"{'held-out' if place.part == 'after' else 'train'}-{place.scenario}"
    return {**_copied_prompt(place, success), "turn_states": (world, f"{world}-moved")}


HEALTHY: dict[str, Plant] = {
    "it learns": Plant(document=TRAINED),
    "other worlds have the prompt of a training world": Plant(change=_first_views, document=TRAINED),
    "it solves the task": Plant(success=lambda p: min(0.97, 0.3 + 1.4 * p.share), metrics=_settled, document=TRAINED),
    "it learns with noise and KL spikes": Plant(
        success=lambda p: 0.35 + 0.45 * p.share + (0.12 if isinstance(p.part, int) and p.part % 2 else -0.12),
        metrics=lambda index: {"kl_to_base": 0.27 if index % 3 == 2 else 0.05, "gradient_norm": 2.1},
        document=TRAINED,
    ),
    "nothing is verified": Plant(
        success=lambda place: None,
        change=lambda place, _: {"breakdown": {"task": 0.6 * place.share + 0.4 * place.draw, "checks": place.draw}},
        document=TRAINED,
    ),
    "nothing is verified, and the reward is at its maximum": Plant(
        success=lambda place: None,
        change=lambda place, _: {
            "breakdown": {"task": 1.0 if place.draw < 0.1 + 1.8 * place.share else 0.0, "checks": 0}
        },
        metrics=_settled,
        document=TRAINED,
    ),
    "failures end at the limit of turns": Plant(change=_long_ways, document=TRAINED),
    "few calls fail, few episodes are truncated": Plant(
        change=lambda place, success: (
            {"call": MALFORMED, "result": BROKEN}
            if place.draw > 0.95
            else {"stop": "truncated"}
            if place.draw > 0.9
            else {}
        ),
        document=TRAINED,
    ),
    "two iterations": Plant(iterations=2, document=TRAINED),
    "off-policy, with a constant safety component": Plant(
        change=lambda place, success: {
            "breakdown": {"task": float(success), "safety": 1.0, "brevity": 0.6 - 0.3 * success + 0.4 * place.draw}
        },
        weights={"task": 0.7, "safety": 0.2, "brevity": 0.1},
        metrics=lambda index: {"clip_share": 0.18, "mismatch_kl": 1e-4, "ratio": 1.02},
        document=TRAINED,
    ),
}
