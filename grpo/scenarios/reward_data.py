"""What people said about replies: which of two is better, or how good one is.

    preference pair    prompt, chosen reply, rejected reply
    labelled reply     prompt, if there was one, reply, label or score

In words; tokens are the learner's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from grpo.config.rewards import LabelFile, PairFile
from grpo.messages import Message
from grpo.scenarios.data_errors import read_guarded
from grpo.scenarios.datasets.bridge_math_tutoring import read_bridge_math_tutoring_pairs
from grpo.scenarios.datasets.casino_negotiation import read_casino_negotiation_labels
from grpo.scenarios.datasets.cima_tutoring import read_cima_tutoring_labels
from grpo.scenarios.datasets.diasafety import read_diasafety_labels
from grpo.scenarios.datasets.hh_rlhf_harmless import read_hh_rlhf_harmless_pairs
from grpo.scenarios.datasets.pandalm import read_pandalm_pairs
from grpo.scenarios.datasets.taskmaster import read_taskmaster_labels
from grpo.scenarios.quarantine import ParsedRecords, parse_records
from grpo.scenarios.readers.record import SourceRecord
from grpo.scenarios.readers.reward_data_file import read_label_records, read_pair_records
from grpo.scenarios.scenario import SplitName

PairKind = Literal["bridge_math_tutoring", "hh_rlhf_harmless", "pandalm"]
LabelKind = Literal["casino_negotiation", "cima_tutoring", "diasafety", "taskmaster"]

_PAIRS: Mapping[PairKind, Callable[[Path, Sequence[str]], Iterator[SourceRecord]]] = {
    "bridge_math_tutoring": read_bridge_math_tutoring_pairs,
    "hh_rlhf_harmless": read_hh_rlhf_harmless_pairs,
    "pandalm": read_pandalm_pairs,
}
_LABELS: Mapping[LabelKind, Callable[[Path, Sequence[str]], Iterator[SourceRecord]]] = {
    "casino_negotiation": read_casino_negotiation_labels,
    "cima_tutoring": read_cima_tutoring_labels,
    "diasafety": read_diasafety_labels,
    "taskmaster": read_taskmaster_labels,
}


class _Judged(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    id: str = Field(min_length=1)
    group: str = Field(min_length=1)
    """What it is about; records of one group belong on one split of a split."""
    prompt: tuple[Message, ...] = Field(min_length=1)
    category: str = Field(min_length=1)
    source: str
    licence: str
    split: SplitName | None = None
    """The split that the source declares."""


class PreferencePair(_Judged):
    """Two replies to the same prompt, of which people prefer one."""

    chosen: Message
    rejected: Message

    @field_validator("chosen", "rejected")
    @classmethod
    def _check_reply(cls, reply: Message) -> Message:
        return _said(reply)

    @model_validator(mode="after")
    def _check_difference(self) -> PreferencePair:
        if self.chosen == self.rejected:
            raise ValueError("chosen and rejected are the same")
        return self


class LabelledReply(_Judged):
    """A reply to a prompt, and what people called it."""

    prompt: tuple[Message, ...] = ()
    reply: Message
    label: str = Field(min_length=1)
    """In the words of its source, for example `Unsafe`."""
    score: float | None = Field(default=None, allow_inf_nan=False)
    """More is better, in the units of its source; None where its labels have no order."""

    @field_validator("reply")
    @classmethod
    def _check_reply(cls, reply: Message) -> Message:
        return _said(reply)


def read_pairs(kind: PairKind, path: Path, parts: Sequence[str] = ()) -> ParsedRecords[PreferencePair]:
    """Read the preference pairs of the data set in the folder `path`; `parts` as `PublishedSource` has them.

    Raises `DataError` where a file is missing or broken.
    """
    return parse_records(read_guarded(lambda: _PAIRS[kind](path, parts), f"{path} ({kind})"), PreferencePair)


def read_labels(kind: LabelKind, path: Path, parts: Sequence[str] = ()) -> ParsedRecords[LabelledReply]:
    """Read the labelled replies of the data set in the folder `path`; `parts` as `PublishedSource` has them.

    Raises `DataError` where a file is missing or broken.
    """
    return parse_records(read_guarded(lambda: _LABELS[kind](path, parts), f"{path} ({kind})"), LabelledReply)


def read_pair_file(settings: PairFile) -> ParsedRecords[PreferencePair]:
    """Read preference pairs from a file of one's own, by the columns that the settings name.

    Raises `DataError` where the file is missing, broken or empty, or lacks a column.
    """
    return parse_records(read_guarded(lambda: read_pair_records(settings), settings.path), PreferencePair)


def read_label_file(settings: LabelFile) -> ParsedRecords[LabelledReply]:
    """Read labelled replies from a file of one's own, by the columns that the settings name.

    Raises `DataError` where the file is missing, broken or empty, or lacks a column.
    """
    return parse_records(read_guarded(lambda: read_label_records(settings), settings.path), LabelledReply)


def _said(reply: Message) -> Message:
    """A reply that says or calls something."""
    if not reply.content.strip() and not reply.tool_calls:
        raise ValueError("reply is empty")
    return reply
