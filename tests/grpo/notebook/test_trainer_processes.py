"""Data-parallel training from a user's script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from grpo.learner.checkpoints import read_state
from tests.checkpoint_weights import largest_difference, share_of_the_step, weights
from tests.places import ROOT

SCRIPT = '''
import asyncio
import os
import sys

from grpo import (
    AgentConfig, Environment, EnvironmentState, Message, MultiTurnAgent, MultiTurnGRPOTrainer,
    RewardFunction, RewardResult, Scenario, StepResult, TrainingConfig,
)

print("script", os.getpid())


class Echo(Environment):
    """Repeats what the agent wrote, once."""

    async def reset(self, scenario=None, *, seed=None):
        user = Message(role="user", content=scenario.user_responses[0])
        return EnvironmentState(scenario=scenario, history=(user,))

    async def step(self, state, action):
        return StepResult(state=state.after(action, turn_count=1, done=True), response=None, terminated=True)


class Letters(RewardFunction):
    name = "letters"
    process = os.getpid()

    async def compute_reward(self, turns, context):
        assert os.getpid() == self.process
        text = "".join(turn.content for turn in turns if turn.role == "assistant")
        return RewardResult(score=text.count("o") / max(1, len(text)))


for processes in (1, 2):
    trainer = MultiTurnGRPOTrainer(
        MultiTurnAgent(AgentConfig(model_name=sys.argv[1])),
        Echo(),
        Letters(),
        TrainingConfig(
            processes=processes, iterations=2, scenarios=3, group_size=8, max_new_tokens=6, learning_rate=5e-4,
            microbatch_tokens=64, save_steps=1,
        ),
        scenarios=[Scenario(id=text, user_responses=(text,)) for text in ("hello", "my order", "how are you")],
        folder=f"with-{processes}",
    )
    agent = asyncio.run(trainer.train())
    assert len(trainer.monitor.records) == 2
    print("trained", agent.policy.hash)
'''


WATCH = """
import os, pathlib

if "LOCAL_RANK" in os.environ:
    pathlib.Path(__file__).with_name(f"worker-{os.environ['LOCAL_RANK']}").touch()
"""


def test_a_script_trains_in_two_processes_to_the_weights_of_one(tmp_path: Path, tiny_folder: Path):
    """A plain script without a guard, run once; its classes are in no module that a worker could import."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    path = os.pathsep.join([str(tmp_path), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    run = subprocess.run(
        [sys.executable, "script.py", str(tiny_folder)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    assert [line.split()[0] for line in run.stdout.splitlines()] == ["script", "trained", "trained"]
    assert {file.name for file in tmp_path.glob("worker-*")} == {"worker-0", "worker-1"}
    one, two = (tmp_path / f"with-{processes}" for processes in (1, 2))
    start, first, last = (f"{index:05d}/checkpoint" for index in range(3))
    before, after = weights(one / start), weights(one / first)
    assert share_of_the_step(after, weights(two / first), before) < 3e-4
    assert largest_difference(after, before) > 1e-4
    assert read_state(two / last).policy_hash == run.stdout.split()[-1]
