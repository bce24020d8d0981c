from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo.config.agent import AgentSettings
from grpo.config.dpo import DPOSettings, WrittenPairs
from grpo.config.environments import ConversationSettings
from grpo.config.episode_parts import EpisodeParts
from grpo.errors import NoEffect
from grpo.learner.checkpoints import read_state, save_base
from grpo.learner.offline.preference_tuning import PreferenceTuning, optimize, tune_on_preferences
from grpo.learner.offline.preferences import pair_logprobs
from grpo.policy.transformers.model import TransformersPolicy, load
from tests.grpo.learner.conftest import perturbed
from tests.grpo.learner.trl.test_dpo_trainer import make_pairs


def tune(folder: Path, policy: TransformersPolicy, **settings: float) -> PreferenceTuning:
    """DPO on two pairs, in the prompts of an agent."""
    base, path = folder / "base", folder / "pairs.jsonl"
    base.mkdir(exist_ok=True)
    save_base(policy, base)
    lines = [
        {
            "prompt": [{"role": "user", "content": f"Question {number}?"}],
            "chosen": [{"role": "assistant", "content": "Yes."}],
            "rejected": [{"role": "assistant", "content": "No."}],
        }
        for number in range(2)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return tune_on_preferences(
        base,
        folder / "tuned",
        DPOSettings(pairs=WrittenPairs(kind="jsonl", path=str(path)), **settings),
        parts=EpisodeParts(
            environment=ConversationSettings(kind="conversation", max_turns=1),
            agent=AgentSettings(system_prompt="Be brief."),
        ),
        max_tokens=4096,
        seed=0,
    )


def test_the_first_loss_is_ln_2_and_the_chosen_replies_become_likelier(policy: TransformersPolicy, tmp_path: Path):
    """The reference is the policy that is trained; two pairs, one a step, three epochs: six losses."""
    result = tune(tmp_path, policy, learning_rate=1e-3, epochs=3, pairs_per_step=1)
    assert (result.pairs, len(result.losses)) == (2, 6)
    assert result.losses[0] == pytest.approx(0.693147, abs=1e-5)
    assert (result.before.margin, result.before.reward_accuracy) == (0, 0.5)
    assert result.after.reward_accuracy == 1
    assert result.after.margin > 0
    assert result.after.loss < 0.65
    assert result.policy == read_state(tmp_path / "tuned").policy_hash != read_state(tmp_path / "base").policy_hash
    assert load(tmp_path / "tuned").hash == result.policy


def test_the_metrics_after_are_those_of_the_trained_weights(policy: TransformersPolicy):
    """Margin β[Δ log π(chosen) − Δ log π(rejected)], from log-probabilities that are computed here again."""
    pairs, settings = (
        make_pairs(),
        DPOSettings(pairs=WrittenPairs(kind="jsonl", path="-"), learning_rate=1e-3, beta=0.3),
    )
    start = pair_logprobs(policy.model, pairs, max_tokens=4096)
    _, before, after = optimize(policy, pairs, settings, max_tokens=4096, seed=0)
    change = pair_logprobs(policy.model, pairs, max_tokens=4096) - start
    assert before.loss == pytest.approx(0.693147, abs=1e-6)
    assert after.margin == pytest.approx(0.3 * float((change[:, 0] - change[:, 1]).mean()), abs=1e-9)
    assert after.margin > 0.01


def test_the_learning_rate_falls_linearly(policy: TransformersPolicy):
    """Three pairs, two a step, two epochs: four steps at 1, 3/4, 1/2 and 1/4 of the rate."""
    settings = DPOSettings(pairs=WrittenPairs(kind="jsonl", path="-"), learning_rate=8e-5, epochs=2, pairs_per_step=2)
    steps, _, _ = optimize(policy, make_pairs(), settings, max_tokens=4096, seed=0)
    assert [step["learning_rate"] for step in steps] == pytest.approx([8e-5, 6e-5, 4e-5, 2e-5])


def test_a_learning_rate_that_changes_no_weight_is_an_error(policy: TransformersPolicy, tmp_path: Path):
    """Its remedy is the setting."""
    with pytest.raises(NoEffect, match=r"Raise dpo\.learning_rate"):
        tune(tmp_path, policy, learning_rate=1e-60)


def test_the_reference_is_the_base_and_not_another_policy(policy: TransformersPolicy, tmp_path: Path):
    """From other weights other metrics before, and the same loss of the first step."""
    first = tune(tmp_path, policy, learning_rate=1e-3)
    (tmp_path / "other").mkdir()
    other = TransformersPolicy(perturbed(policy.model), policy.tokenizer)
    second = tune(tmp_path / "other", other, learning_rate=1e-3)
    assert first.losses[0] == pytest.approx(second.losses[0], abs=1e-5)
    assert first.policy != second.policy
