"""The path of a run in CONTRIBUTING.md, walked by a run."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from grpo import progress
from grpo.config.pipeline import PipelineConfig
from tests.doubles import changed
from tests.places import ROOT

STAGE_CALL = ("tasks/stage.py", "tasks/executor.py", "tasks/gpu_slots.py")
"""Modules of the stage call itself, which is the same for every stage."""


def _project_frames(frame: FrameType | None) -> list[tuple[str, str]]:
    """(module file, function) of the project's functions on the stack, outermost first."""
    frames = []
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in ("flows", "tasks", "grpo"):
            frames.append((str(path.relative_to(ROOT)), frame.f_code.co_qualname))
        frame = frame.f_back
    return frames[::-1]


def _stack_at(function: str, run: Any) -> list[tuple[str, str]]:
    """The stack at the first call of a function while `run` runs."""
    stack: list[tuple[str, str]] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == function and not stack:
            stack.extend(_project_frames(frame))
            sys.setprofile(None)

    def observe(stage: str, *_: object) -> None:
        if stage == "train" and not stack:  # a profiled rollout would take minutes
            sys.setprofile(profile)

    try:
        with progress.observed(observe):
            run()
    finally:
        sys.setprofile(None)
    return stack


@pytest.mark.usefixtures("server")
@pytest.mark.filterwarnings("ignore")
def test_the_path_of_a_run_is_the_documented_one(desk_config: dict[str, Any]):
    """Each function from the flow to the policy loss, in call order; at most 12 after the flow."""
    from flows.train import train

    config = PipelineConfig.model_validate(changed(desk_config, name="path", training={"iterations": 1}))
    stack = _stack_at("clipped_surrogate", lambda: train(config))
    flow = next(index for index, (path, _) in enumerate(stack) if path == "flows/train.py")
    calls = [f"{path} {name.removesuffix('.<locals>.work')}" for path, name in stack[flow:] if path not in STAGE_CALL]
    documented = re.search(r"## The path of a run\n.*?```\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert documented is not None
    lines = [" ".join(line.split()[:2]) for line in documented[1].splitlines()]
    assert calls == lines
    assert len(calls) - 1 <= 12
