from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Literal

from grpo.artifacts import ArtifactStore
from grpo.config.dpo import WrittenPairs
from grpo.config.retraining import CurationSettings
from grpo.config.scenarios import ServedSource
from grpo.config.sft import WrittenDemonstrations
from grpo.learner.offline.demonstrations import read_demonstrations
from grpo.learner.offline.preferences import read_pairs
from grpo.log.folder import ServedLog
from grpo.log.writer import ServingLog
from grpo.scenario import Scenario, SplitName
from grpo.scenarios.table import write_scenarios
from grpo_tasks.write_corrections import CorrectionsResult, write_corrections
from tests.grpo.log.fixtures import feedback, turn


def corrected(
    folder: Path, splits: dict[str, SplitName], *, method: Literal["sft", "dpo"] = "sft", max_corrections: int = 9
) -> CorrectionsResult:
    """Corrections of the conversations a, b and c, when the mixture has these splits."""

    async def serve() -> None:
        async with ServingLog(folder / "log") as log:
            for name in "abc":
                await log.append(replace(turn(name), conversation_id=name))
                await log.append(feedback(f"on {name}", conversation_id=name, correction=f"Better {name}."))

    asyncio.run(serve())
    store = ArtifactStore(str(folder / "store"))
    with store.new_file("mixture", ".parquet") as new:
        scenarios = [
            Scenario(id=f"conversation-{name}", user_responses=(f"Question {name}?",), split=split)
            for name, split in splits.items()
        ]
        write_scenarios(new.path, scenarios)
    source = ServedSource(kind="served", path=str(folder / "log"), segments=ServedLog(folder / "log").snapshot())
    return write_corrections.fn(
        sources=(source,),
        content="",
        mixture=new.artifact,
        settings=CurationSettings(licences=("own",)),
        method=method,
        max_corrections=max_corrections,
        store=str(folder / "store"),
    )


def test_corrections_of_held_out_conversations_are_not_trained_on(tmp_path: Path):
    """Of a in the training split, b held out and c in neither, the correction of a alone is a demonstration."""
    result = corrected(tmp_path, {"a": "train", "b": "heldout"})
    assert (result.counts.corrections, result.counts.used) == (3, 1)
    assert result.counts.rejected == {"conversation not trained on": 2}
    path = ArtifactStore(str(tmp_path / "store")).path(result.written)
    [messages] = read_demonstrations(WrittenDemonstrations(kind="jsonl", path=str(path)))
    assert [message.content for message in messages] == ["Question a?", "Better a."]


def test_the_corrections_of_one_training_split_are_one_artifact(tmp_path: Path):
    """The order of the log decides, not that of the mixture."""
    first = corrected(tmp_path / "one", {"a": "train", "b": "train"})
    second = corrected(tmp_path / "two", {"b": "train", "a": "train"})
    assert first.counts.used == 2
    assert first.written.sha256 == second.written.sha256


def test_with_dpo_the_corrections_are_preferred_to_what_was_served(tmp_path: Path):
    """Of a and b in the training split the newer one, at most one being asked for."""
    result = corrected(tmp_path, {"a": "train", "b": "train"}, method="dpo", max_corrections=1)
    [pair] = read_pairs(
        WrittenPairs(kind="jsonl", path=str(ArtifactStore(str(tmp_path / "store")).path(result.written)))
    )
    assert [message.content for message in pair.prompt] == ["Question b?"]
    assert (pair.chosen.content, pair.rejected.content) == ("Better b.", "Answer b.")
    assert (result.counts.used, sum(result.counts.rejected.values())) == (1, 2)
