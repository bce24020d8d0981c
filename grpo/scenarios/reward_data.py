"""Training data of reward models: preference pairs and labelled replies.

    preference pair    prompt, chosen reply, rejected reply
    labelled reply     prompt, if there was one, reply, label or score

Messages are text, because the learner tokenizes them. A data set's pairs and labels are read by `read_NAME_pairs` and
`read_NAME_labels` in `grpo/contrib/datasets/NAME.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from grpo.config.rewards import LabelFile, PairFile
from grpo.data_errors import read_guarded
from grpo.messages import Message
from grpo.scenario import SplitName
from grpo.scenarios.quarantine import ParsedRecords, parse_records
from grpo.scenarios.readers.reward_data_file import read_label_records, read_pair_records
from grpo.scenarios.sources import dataset_reader

PairKind = Literal["bridge_math_tutoring", "hh_rlhf_harmless", "pandalm"]
LabelKind = Literal["casino_negotiation", "cima_tutoring", "diasafety", "taskmaster"]


class _RewardExample(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    id: str = Field(min_length=1)
    group: str = Field(min_length=1)
    """The common subject of several records. All records of one group go into the same split."""
    prompt: tuple[Message, ...] = Field(min_length=1)
    category: str = Field(min_length=1)
    source: str
    licence: str
    split: SplitName | None = None
    """The split that the source declares."""


class PreferencePair(_RewardExample):
    """Two replies to the same prompt, one of them preferred by annotators."""

    chosen: Message
    rejected: Message

    @field_validator("chosen", "rejected")
    @classmethod
    def _check_reply(cls, reply: Message) -> Message:
        return _not_empty(reply)

    @model_validator(mode="after")
    def _check_difference(self) -> PreferencePair:
        if self.chosen == self.rejected:
            raise ValueError("chosen and rejected are the same")
        return self


class LabelledReply(_RewardExample):
    """A reply to a prompt with its annotators' label."""

    prompt: tuple[Message, ...] = ()
    reply: Message
    label: str = Field(min_length=1)
    """Label as in the source, e.g. `Unsafe`."""
    score: float | None = Field(default=None, allow_inf_nan=False)
    """Higher is better, in the units of the source. None if the labels have no order."""

    @field_validator("reply")
    @classmethod
    def _check_reply(cls, reply: Message) -> Message:
        return _not_empty(reply)


def read_pairs(kind: PairKind, path: Path, parts: Sequence[str] = ()) -> ParsedRecords[PreferencePair]:
    """Read the preference pairs of the data set in the folder `path`, with `parts` as in `PublishedSource`.

    Raises `DataError` if a file is missing or broken.
    """
    return parse_records(
        read_guarded(lambda: dataset_reader(kind, "_pairs")(path, parts), f"{path} ({kind})"), PreferencePair
    )


def read_labels(kind: LabelKind, path: Path, parts: Sequence[str] = ()) -> ParsedRecords[LabelledReply]:
    """Read the labelled replies of the data set in the folder `path`, with `parts` as in `PublishedSource`.

    Raises `DataError` if a file is missing or broken.
    """
    return parse_records(
        read_guarded(lambda: dataset_reader(kind, "_labels")(path, parts), f"{path} ({kind})"), LabelledReply
    )


def read_pair_file(settings: PairFile) -> ParsedRecords[PreferencePair]:
    """Read preference pairs from a user's file, by the columns in `settings`.

    Raises `DataError` if the file is missing, broken or empty, or lacks a column.
    """
    return parse_records(read_guarded(lambda: read_pair_records(settings), settings.path), PreferencePair)


def read_label_file(settings: LabelFile) -> ParsedRecords[LabelledReply]:
    """Read labelled replies from a user's file, by the columns in `settings`.

    Raises `DataError` if the file is missing, broken or empty, or lacks a column.
    """
    return parse_records(read_guarded(lambda: read_label_records(settings), settings.path), LabelledReply)


def _not_empty(reply: Message) -> Message:
    """Return the reply. Raises `ValueError` if it has neither text nor tool calls."""
    if not reply.content.strip() and not reply.tool_calls:
        raise ValueError("reply is empty")
    return reply
