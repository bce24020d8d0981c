"""Updates with a teacher: what only it can teach is learned, with any weights, dtype, adapters and processes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from grpo.config.rollout import RolloutSettings
from grpo.config.training import TrainingSettings
from grpo.environments.conversation import ConversationEnvironment
from grpo.errors import PolicyError
from grpo.learner.batch import Sample
from grpo.learner.checkpoints import read_state, save_base
from grpo.learner.logprobs import compute_logprobs
from grpo.learner.metrics import UpdateMetrics
from grpo.learner.update import update
from grpo.messages import Message
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.policy.transformers.model_cache import model_cache
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect
from grpo.scenario import Scenario
from grpo.tables import write_trajectories
from grpo.trajectories import Trajectory
from tests.grpo.learner.conftest import DeskRollout, distilled_update

SCENARIOS = [Scenario(id=text, user_responses=(text,)) for text in ("hello", "my order", "how are you", "broken")]
HINTS = {scenario.id: "Reference reply: hello there" for scenario in SCENARIOS}
HALF = 160
"""Token ids below it are the ones that the planted teacher prefers: half of the vocabulary."""
SELF = {"distillation": {"privileged_context": ["responses"]}}


def _save(policy: TransformersPolicy, folder: Path) -> Path:
    folder.mkdir(parents=True)
    save_base(policy, folder)
    return folder


def _collect(checkpoint: Path, iteration: int) -> list[Trajectory]:
    policy = model_cache.get(read_state(checkpoint).policy_hash, checkpoint)
    return collect(
        SCENARIOS,
        policy,
        ConversationEnvironment(max_turns=1),
        Renderer(policy.tokenizer),
        RolloutSettings(max_new_tokens=6),
        group_size=4,
        temperature=1.0,
        run_seed=0,
        iteration=iteration,
    )


def _train(
    folder: Path, base: Path, *, iterations: int, teacher: Path | None = None, hints: dict[str, str], **settings: object
) -> tuple[list[float], list[UpdateMetrics]]:
    """Share of low tokens and metrics of iterations in which every reward is the same."""
    plan = TrainingSettings(**{"learning_rate": 3e-2, **settings})  # type: ignore[arg-type]
    checkpoint, shares, metrics = base, [], []
    for iteration in range(iterations):
        played = _collect(checkpoint, iteration)
        shares.append(float(np.mean([(t.token_ids[t.loss_mask] < HALF).mean() for t in played])))
        scored, target = folder / f"{iteration}.parquet", folder / f"after-{iteration}"
        write_trajectories(scored, [replace(t, terminal_reward=0.5) for t in played], provenance={})
        metrics.append(
            update(
                [scored], checkpoint, base, target, plan, seed=0, iteration=iteration, teacher=teacher, hints=hints
            ).metrics
        )
        checkpoint = target
    return shares, metrics


def test_a_teacher_teaches_what_equal_rewards_cannot(tmp_path: Path, tiny_folder: Path):
    """The teacher prefers half of the vocabulary. The policy comes to, although no group is informative.

    Without the teacher the same rollout has no learning signal.
    """
    policy = load(tiny_folder)
    base = _save(policy, tmp_path / "base")
    planted = load(tiny_folder)
    with torch.no_grad():
        state = planted.model.model(torch.arange(300)[None]).last_hidden_state[0].mean(dim=0)
        planted.model.get_output_embeddings().weight[:HALF] += 4 * state / state.norm() ** 2
    teacher = _save(TransformersPolicy(planted.model, planted.tokenizer), tmp_path / "teacher")
    settings = {"distillation": {"teacher_model_name_or_path": "models/teacher"}}
    shares, metrics = _train(tmp_path, base, iterations=4, teacher=teacher, hints={}, **settings)
    assert [m.informative_share for m in metrics] == [0] * 4
    assert metrics[-1].teacher_kl < 0.5 * metrics[0].teacher_kl
    assert shares[-1] > shares[0] + 0.15


def _reader(tiny_folder: Path) -> TransformersPolicy:
    """The tiny model, taught to reply `hello` to a prompt with the hint, and `broken` to one without it."""
    policy = load(tiny_folder)
    renderer, plan = Renderer(policy.tokenizer), TrainingSettings(**SELF).distillation
    assert plan is not None
    samples = []
    for text, hint in HINTS.items():
        for user, reply in ((text, "broken"), (plan.teacher_message(text, hint), "hello")):
            messages = (Message(role="user", content=user), Message(role="assistant", content=reply))
            ids, mask = renderer.tokenize_conversation(messages)
            blank = np.zeros(len(ids), dtype=np.float32)
            samples.append(
                Sample(
                    token_ids=np.array(ids, dtype=np.int32),
                    loss_mask=np.array(mask),
                    sampler_logprobs=blank,
                    advantages=blank,
                    temperature=1.0,
                    place=text,
                )
            )
    optimizer = torch.optim.Adam(policy.model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        (-compute_logprobs(policy.model, samples).logprobs.mean()).backward()
        optimizer.step()
    return TransformersPolicy(policy.model, policy.tokenizer)


@pytest.mark.parametrize("kind", ["base", "live"])
def test_a_hint_teaches_the_policy_what_it_would_reply_with_it(tmp_path: Path, tiny_folder: Path, kind: str):
    """Without the hint it replies `broken`. It comes to reply `hello`, although it never sees the hint."""
    base = _save(_reader(tiny_folder), tmp_path / "base")
    settings = {"distillation": {"privileged_context": ["responses"], "teacher_model_kind": kind}}
    _, metrics = _train(tmp_path, base, iterations=3, hints=HINTS, learning_rate=3e-3, **settings)
    replies = [[t.messages[-1].content for t in _collect(folder, 9)] for folder in (base, tmp_path / "after-2")]
    assert [m.taught_share for m in metrics] == [1] * 3
    assert replies[0].count("hello") < 2
    assert replies[1].count("hello") > 12


def test_adapters_and_half_precision_have_the_same_teacher(desk_rollout: DeskRollout, tmp_path: Path):
    """New adapters change nothing yet, so that the base and the live policy are the same teacher. So is bfloat16's."""
    whole = distilled_update(desk_rollout, tmp_path / "whole", **SELF)
    assert whole.teacher_kl is not None
    assert whole.teacher_kl > 1e-3
    for kind in ("base", "live"):
        settings = {"distillation": {"privileged_context": ["responses"], "teacher_model_kind": kind}}
        adapted = distilled_update(desk_rollout, tmp_path / kind, lora={"r": 4}, **settings)
        assert adapted.teacher_kl == pytest.approx(whole.teacher_kl, rel=1e-4)
    half = distilled_update(desk_rollout, tmp_path / "half", precision="bf16", importance_sampling_cap=2.0, **SELF)
    assert half.teacher_kl == pytest.approx(whole.teacher_kl, rel=0.05)
    shutil.copytree(desk_rollout.base, tmp_path / "rounded")
    save_base(load(desk_rollout.base), tmp_path / "rounded", dtype="bfloat16")
    desk = replace(desk_rollout, base=tmp_path / "rounded")
    rounded = distilled_update(desk, tmp_path / "after", importance_sampling_cap=2.0, **SELF)
    assert rounded.teacher_kl == pytest.approx(whole.teacher_kl, rel=0.1)


def test_a_teacher_of_another_tokenizer_stops_the_update(desk_rollout: DeskRollout, tiny_folder: Path, tmp_path: Path):
    """Its checkpoint is of the tiny model. The message names it as the config does."""
    teacher = _save(load(tiny_folder), tmp_path / "teacher")
    settings = {"distillation": {"teacher_model_name_or_path": "models/tiny"}}
    with pytest.raises(PolicyError, match="the teacher models/tiny has another tokenizer than the policy"):
        distilled_update(desk_rollout, tmp_path / "x", teacher=teacher, **settings)
