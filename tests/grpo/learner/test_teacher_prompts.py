"""The teacher reads the policy's own tokens after a prompt with the hint. Tests of that, and of a batch's groups."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpo.config.distillation import DistillationSettings
from grpo.config.training import TrainingSettings
from grpo.errors import DataError, NoLearningSignal
from grpo.learner.batch import build_batch, make_minibatches
from grpo.learner.teacher_prompts import TeacherPrompts, hints_of, privileged_context
from grpo.messages import Message, Tool
from grpo.policy.transformers.model import load
from grpo.renderers.chat_template import Renderer
from grpo.scenario import Scenario
from grpo.trajectories import Trajectory, TrajectoryGroup, Turn
from tests.doubles import make_trajectory

SYSTEM, USER = Message(role="system", content="be kind"), Message(role="user", content="my order is broken")
HINT = "Reference reply: hello"


@pytest.fixture(scope="module")
def renderer(tiny_folder: Path) -> Renderer:
    """Renderer of the tiny model with a tool, as a rollout has it."""
    return Renderer(load(tiny_folder).tokenizer, tools=(Tool(name="look_up"),))


def _episode(renderer: Renderer, *first: Message, **changes: object) -> Trajectory:
    """An episode with the reply `hello`, an answer of the environment, and another reply."""
    prompt, reply = renderer.build_prompt(first), renderer.encode_reply(Message(role="assistant", content="hello"))
    again = Message(role="user", content="hello there")
    answer = Message(role="assistant", content="hello")
    bridge = renderer.build_continuation([*first, answer], [again], ended_by=reply[-1])
    parts = (prompt, reply, bridge, reply)
    ids = np.array([token for part in parts for token in part], dtype=np.int32)
    mask = np.array([at % 2 == 1 for at, part in enumerate(parts) for _ in part])
    ends = np.cumsum([len(part) for part in parts]).tolist()
    turns = [Turn(message=message, start=0, stop=0) for message in first[:-1]]
    turns += [
        Turn(message=message, start=start, stop=stop)
        for message, start, stop in zip((first[-1], answer, again, answer), [0, *ends[:-1]], ends, strict=True)
    ]
    fields: dict[str, Any] = {
        "turns": tuple(turns),
        "token_ids": ids,
        "loss_mask": mask,
        "sampler_logprobs": np.zeros(len(ids), dtype=np.float32),
        "terminal_reward": 1.0,
        **changes,
    }
    return make_trajectory(**fields)


def _prompts(tiny_folder: Path, *, hints: dict[str, str], max_context: int = 512, **settings: Any) -> TeacherPrompts:
    """The learner's maker, with a renderer that knows no tools."""
    plan = DistillationSettings(**{"privileged_context": ["responses"], **settings})
    return TeacherPrompts(plan, Renderer(load(tiny_folder).tokenizer), hints=hints, max_context=max_context)


@pytest.mark.parametrize("template", ["{prompt}\n\n{privileged_context}", "{privileged_context} : {prompt} !"])
def test_only_the_first_prompt_has_the_hint(renderer: Renderer, tiny_folder: Path, template: str):
    """The tokens equal the rendered conversation with the hint in the user's first message, tools included."""
    played = _episode(renderer, SYSTEM, USER)
    prompts = _prompts(tiny_folder, hints={"s": HINT}, teacher_prompt_template=template)
    text = template.replace("{prompt}", USER.content).replace("{privileged_context}", HINT)
    expected = _episode(renderer, SYSTEM, replace(USER, content=text))
    sequence = prompts.sequence(played, stop=len(played.token_ids))
    assert sequence is not None
    assert sequence.token_ids.tolist() == expected.token_ids.tolist()
    assert sequence.loss_mask.tolist() == expected.loss_mask.tolist()
    assert "look_up" in renderer.decode(sequence.token_ids.tolist())
    assert sequence.token_ids[sequence.loss_mask].tolist() == played.token_ids[played.loss_mask].tolist()


def test_another_teacher_reads_what_the_policy_has_read(renderer: Renderer, tiny_folder: Path):
    """Without privileged context no hint is looked for."""
    played = _episode(renderer, USER)
    settings = {"privileged_context": (), "teacher_model_name_or_path": "models/other"}
    sequence = _prompts(tiny_folder, hints={}, **settings).sequence(played, stop=7)
    assert sequence is not None
    assert sequence.token_ids.tolist() == played.token_ids[:7].tolist()


def test_a_scenario_without_a_hint_has_no_teacher(renderer: Renderer, tiny_folder: Path):
    """It is not compared with itself without a hint."""
    played = _episode(renderer, USER)
    assert _prompts(tiny_folder, hints={"other": HINT}).sequence(played, stop=len(played.token_ids)) is None


def test_a_prompt_to_which_no_hint_can_be_added_is_refused(renderer: Renderer, tiny_folder: Path):
    """Tokens that do not end as the messages are rendered, no user, and no room in the teacher's context."""
    played = _episode(renderer, USER)
    end = played.turns[0].stop
    other = played.token_ids.copy()
    other[end - 1] += 1
    prompts = _prompts(tiny_folder, hints={"s": HINT})
    with pytest.raises(DataError, match="scenario s sample 0: the prompt does not end as its messages are rendered"):
        prompts.sequence(replace(played, token_ids=other), stop=len(other))
    turn = replace(played.turns[0], message=Message(role="tool", content="x"))
    with pytest.raises(DataError, match="scenario s sample 0 has no user message before the first reply"):
        prompts.sequence(replace(played, turns=(turn, *played.turns[1:]), token_ids=other), stop=len(other))
    with pytest.raises(DataError, match=r"has \d+ tokens for the teacher, which reads 20. Lower rollout.max_context"):
        _prompts(tiny_folder, hints={"s": HINT}, max_context=20).sequence(played, stop=len(other))


def test_a_hint_is_made_of_the_parts_that_the_scenario_expects():
    """In the order of the setting. A scenario that expects none of the parts has no hint."""
    told = Scenario(
        id="told",
        user_responses=("hi",),
        expected={"responses": ["Good day."], "state": {"order 17": "cancelled"}, "facts": ["free"]},
    )
    silent = Scenario(id="silent", user_responses=("hi",))
    outcome = 'Expected outcome: {"state": {"order 17": "cancelled"}, "facts": ["free"]}'
    assert privileged_context(told, ["outcome", "responses"]) == f"{outcome}\nReference reply: Good day."
    assert hints_of([told, silent], ["responses"]) == {"told": "Reference reply: Good day."}


def test_equal_rewards_are_no_obstacle_under_a_teacher(renderer: Renderer, tiny_folder: Path):
    """No group is informative, every sample stays with its teacher, and steps take as many groups as are set."""
    groups = [
        TrajectoryGroup(
            scenario_id=name, trajectories=tuple(_episode(renderer, USER, scenario_id=name, sample=k) for k in (0, 1))
        )
        for name in ("a", "b")
    ]
    settings = TrainingSettings(distillation={"privileged_context": ["responses"]})
    prompts = _prompts(tiny_folder, hints={"a": HINT, "b": HINT})
    batch = build_batch(groups, settings, policy_hash="p", teacher=prompts)
    assert batch.informative == 0
    assert [sample.teacher is not None for sample in batch.samples] == [True] * 4
    steps = make_minibatches(batch.groups, TrainingSettings(groups_per_step=1), rng=np.random.default_rng(0))
    assert [len(step) for step in steps] == [2, 2]


def test_a_rollout_without_any_hint_has_no_learning_signal(renderer: Renderer, tiny_folder: Path):
    """Unless rewards differ and the policy gradient has a weight."""
    members = tuple(_episode(renderer, USER, sample=k, terminal_reward=float(k)) for k in (0, 1))
    groups = [TrajectoryGroup(scenario_id="s", trajectories=members)]
    prompts = _prompts(tiny_folder, hints={})
    alone = TrainingSettings(distillation={"privileged_context": ["responses"]})
    with pytest.raises(NoLearningSignal, match=r"1 groups has a hint for the teacher.*distillation_weight 1 leaves"):
        build_batch(groups, alone, policy_hash="p", teacher=prompts)
    other = TrajectoryGroup(scenario_id="t", trajectories=tuple(replace(t, scenario_id="t") for t in members))
    hinted = build_batch([*groups, other], alone, policy_hash="p", teacher=_prompts(tiny_folder, hints={"t": HINT}))
    assert [[sample.place for sample in group] for group in hinted.groups] == [
        ["scenario t sample 0", "scenario t sample 1"]
    ]
    assert (hinted.informative, hinted.sample_count) == (2, 4)
    mixed = _prompts(tiny_folder, hints={}, distillation_weight=0.5)
    assert build_batch(groups, alone, policy_hash="p", teacher=mixed).informative == 1
    equal = [replace(groups[0], trajectories=tuple(replace(t, terminal_reward=1.0) for t in members))]
    with pytest.raises(NoLearningSignal, match="and their rewards are equal"):
        build_batch(equal, alone, policy_hash="p", teacher=mixed)
