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

from grpo.config.judged import LabelFile, PairFile
from grpo.messages import Message
from grpo.scenarios.boundary import bounded
from grpo.scenarios.readers.bridge_math_tutoring import read_bridge_pairs
from grpo.scenarios.readers.casino_negotiation import read_casino_labels
from grpo.scenarios.readers.cima_tutoring import read_cima_labels
from grpo.scenarios.readers.diasafety import read_diasafety
from grpo.scenarios.readers.hh_rlhf_harmless import read_hh_rlhf_harmless
from grpo.scenarios.readers.judged_file import read_label_records, read_pair_records
from grpo.scenarios.readers.pandalm import read_pandalm
from grpo.scenarios.readers.record import Record
from grpo.scenarios.readers.taskmaster import read_taskmaster_labels
from grpo.scenarios.readout import Readout, read_out
from grpo.scenarios.scenario import Side

PairKind = Literal["bridge_math_tutoring", "hh_rlhf_harmless", "pandalm"]
LabelKind = Literal["casino_negotiation", "cima_tutoring", "diasafety", "taskmaster"]

_PAIRS: Mapping[PairKind, Callable[[Path, Sequence[str]], Iterator[Record]]] = {
    "bridge_math_tutoring": read_bridge_pairs,
    "hh_rlhf_harmless": read_hh_rlhf_harmless,
    "pandalm": read_pandalm,
}
_LABELS: Mapping[LabelKind, Callable[[Path, Sequence[str]], Iterator[Record]]] = {
    "casino_negotiation": read_casino_labels,
    "cima_tutoring": read_cima_labels,
    "diasafety": read_diasafety,
    "taskmaster": read_taskmaster_labels,
}


class _Judged(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    id: str = Field(min_length=1)
    group: str = Field(min_length=1)
    """What it is about; records of one group belong on one side of a split."""
    prompt: tuple[Message, ...] = Field(min_length=1)
    category: str = Field(min_length=1)
    source: str
    licence: str
    side: Side | None = None
    """The side that the source declares."""


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


def read_pairs(kind: PairKind, path: Path, parts: Sequence[str] = ()) -> Readout[PreferencePair]:
    """Read the preference pairs of the data set in the folder `path`; `parts` as `PublishedSource` has them.

    Raises `DataError` where a file is missing or broken.
    """
    return read_out(bounded(lambda: _PAIRS[kind](path, parts), f"{path} ({kind})"), PreferencePair)


def read_labels(kind: LabelKind, path: Path, parts: Sequence[str] = ()) -> Readout[LabelledReply]:
    """Read the labelled replies of the data set in the folder `path`; `parts` as `PublishedSource` has them.

    Raises `DataError` where a file is missing or broken.
    """
    return read_out(bounded(lambda: _LABELS[kind](path, parts), f"{path} ({kind})"), LabelledReply)


def read_pair_file(settings: PairFile) -> Readout[PreferencePair]:
    """Read preference pairs from a file of one's own, by the columns that the settings name.

    Raises `DataError` where the file is missing, broken or empty, or lacks a column.
    """
    return read_out(bounded(lambda: read_pair_records(settings), settings.path), PreferencePair)


def read_label_file(settings: LabelFile) -> Readout[LabelledReply]:
    """Read labelled replies from a file of one's own, by the columns that the settings name.

    Raises `DataError` where the file is missing, broken or empty, or lacks a column.
    """
    return read_out(bounded(lambda: read_label_records(settings), settings.path), LabelledReply)


def _said(reply: Message) -> Message:
    """A reply that says or calls something."""
    if not reply.content.strip() and not reply.tool_calls:
        raise ValueError("reply is empty")
    return reply
