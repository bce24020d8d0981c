"""Checks of demonstrations before the sft stage trains on them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo.config.environments import SupportDeskSettings
from grpo.config.episode_parts import EpisodeParts
from grpo.config.sft import SFTSettings
from grpo.errors import DataError
from grpo.learner.checkpoints import save_base
from grpo.learner.offline.fine_tuning import fine_tune
from grpo.policy.transformers.model import load
from tests.places import DESK_MODEL


@pytest.mark.parametrize(
    ("turn", "fault"),
    [
        (
            {"content": None, "tool_calls": [{"function": {"name": "fly", "arguments": "{}"}}]},
            "demonstration 1 of .* calls fly, which the prompt does not declare. Its tools are look_up, ",
        ),
        (
            {"content": "Hello.", "reasoning_content": "A greeting."},
            "message 2: its reasoning was written as 'A greeting.', but reads back from its tokens as ''",
        ),
        (
            {"content": '<tool_call>{"name": "fly", "arguments": {}}</tool_call>'},
            "message 2: its content was written as .*, but reads back from its tokens as ''",
        ),
    ],
)
def test_what_the_policy_would_be_taught_wrongly_is_refused(tmp_path: Path, turn: dict, fault: str):
    """A tool that the prompt does not have, reasoning that the template does not print, a call in the content."""
    turns = [{"role": "user", "content": "Hi."}, {"role": "assistant", **turn}]
    path = tmp_path / "lines.jsonl"
    path.write_text(json.dumps({"messages": turns}))
    (tmp_path / "base").mkdir()
    save_base(load(DESK_MODEL), tmp_path / "base")
    settings = SFTSettings.model_validate({"demonstrations": {"kind": "jsonl", "path": str(path)}})
    with pytest.raises(DataError, match=fault):
        fine_tune(
            tmp_path / "base",
            tmp_path / "tuned",
            settings,
            parts=EpisodeParts(environment=SupportDeskSettings(kind="support_desk")),
            max_tokens=1024,
            seed=0,
        )
