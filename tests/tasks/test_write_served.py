from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from grpo.artifacts import ArtifactStore, local_path
from grpo.config.dpo import DPOSettings, ServedPairs, WrittenPairs
from grpo.config.pipeline import PipelineConfig
from grpo.config.sft import ServedDemonstrations, SFTSettings, WrittenDemonstrations
from grpo.identity.cache_identity import pin_models, stage_key
from grpo.learner.offline.demonstrations import read_demonstrations
from grpo.learner.offline.preferences import read_pairs
from grpo.log import ServingLog
from grpo.log.copies import Mentions, erase_from_store
from grpo.log.folder import name_digest
from grpo.registry.erased_data import TUNED_ON, is_tuned_on, tuned_on
from grpo_tasks.execution.executor import InProcessExecutor
from grpo_tasks.execution.stage import executed_by
from grpo_tasks.write_served import with_written_data
from tests.doubles import short_run
from tests.grpo.log.fixtures import feedback, turn


def serve(folder: Path, *names: str) -> None:
    """A success and a correction in the conversations of these names."""

    async def write() -> None:
        async with ServingLog(folder) as log:
            for name in names:
                await log.append(replace(turn(name), conversation_id=name))
                await log.append(feedback(f"on {name}", conversation_id=name, correction=f"Better {name}."))

    asyncio.run(write())


def config(folder: Path) -> PipelineConfig:
    """A run that learns from the log in two stages before GRPO."""
    log = {"kind": "served", "path": str(folder / "log"), "licences": ["own"]}
    return PipelineConfig.model_validate(
        short_run(folder, store=str(folder / "store"), sft={"demonstrations": log}, dpo={"pairs": log})
    )


def written(given: PipelineConfig) -> tuple[SFTSettings, DPOSettings]:
    """Settings of both stages after the files were written."""
    with executed_by(InProcessExecutor()):
        result = with_written_data(given)
    assert result.sft is not None
    assert result.dpo is not None
    return result.sft, result.dpo


def test_a_run_learns_from_files_in_place_of_its_logs(tmp_path: Path):
    """The files are artifacts of its store; a config without logs stays as it is."""
    serve(tmp_path / "log", "a")
    sft, dpo = written(config(tmp_path))
    assert isinstance(sft.demonstrations, WrittenDemonstrations)
    assert isinstance(dpo.pairs, WrittenPairs)
    [demonstration] = read_demonstrations(sft.demonstrations)
    assert [message.content for message in demonstration] == ["Question a?", "Better a."]
    [pair] = read_pairs(dpo.pairs)
    assert (pair.chosen.content, pair.rejected.content) == ("Better a.", "Answer a.")
    plain = PipelineConfig.model_validate(short_run(tmp_path))
    assert with_written_data(plain) is plain


def test_a_pinned_run_does_not_see_what_is_logged_later(tmp_path: Path):
    """Pinning names the entries of the log; the same pinned config gives the same file."""
    serve(tmp_path / "log", "a")
    pinned = pin_models(config(tmp_path))
    assert pinned.sft is not None
    assert isinstance(pinned.sft.demonstrations, ServedDemonstrations)
    assert pinned.dpo is not None
    assert isinstance(pinned.dpo.pairs, ServedPairs)
    assert pinned.sft.demonstrations.segments == pinned.dpo.pairs.segments != ()
    before = written(pinned)
    serve(tmp_path / "log", "b")
    assert written(pinned) == before
    assert written(config(tmp_path)) != before


def test_other_demonstrations_and_pairs_are_another_identity_of_their_stages(tmp_path: Path):
    """The content of the files counts, not their paths."""
    for name in ("one", "two", "copy"):
        serve(tmp_path / name / "log", "b" if name == "two" else "a")
    for stage, number in (("sft", 0), ("dpo", 1)):
        one, two, copy = (
            stage_key(stage, {"settings": written(config(tmp_path / name))[number]}) for name in ("one", "two", "copy")
        )
        assert one != two
        assert one == copy


def test_an_erasure_finds_the_files_and_the_version_that_was_trained_on_them(tmp_path: Path):
    """The version has the first digits of their digests in a tag."""
    serve(tmp_path / "log", "a")
    sft, dpo = written(config(tmp_path))
    trained = config(tmp_path).model_copy(update={"sft": sft, "dpo": dpo})
    tags = tuned_on(trained)
    assert len(tags[TUNED_ON].split(",")) == 2
    assert not is_tuned_on(tags, ["ab" * 32])
    assert not is_tuned_on({}, ["ab" * 32])
    store = ArtifactStore(str(tmp_path / "store"))
    erased = list(erase_from_store(store, Mentions([name_digest("a")])))
    assert [copy.place for copy in erased] == ["store/corrections", "store/corrections"]
    assert all(is_tuned_on(tags, [copy.sha256]) for copy in erased)
    assert not local_path(sft.demonstrations.path).exists()


def test_a_file_of_the_user_is_not_an_artifact_of_a_log(tmp_path: Path):
    """No version is named for it."""
    path = str(tmp_path / "corrections" / "mine.jsonl")
    own = {"sft": {"demonstrations": {"kind": "jsonl", "path": path}}}
    assert tuned_on(PipelineConfig.model_validate(short_run(tmp_path, **own))) == {}
