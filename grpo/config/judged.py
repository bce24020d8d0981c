"""Preference pairs and labelled replies in files of one's own: which column holds what."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from grpo.config.base import Settings


class _JudgedFile(Settings):
    kind: Literal["jsonl", "json", "parquet", "csv"]
    """Format of the file."""
    path: str
    """File to read, or a table in an object store; `.tsv` files of kind csv are read tab-separated."""
    layout: Literal["text", "messages"] = "text"
    """Form of prompt and replies: texts (a user's message, an agent's replies), or lists of `{"role", "content"}`, as
    JSON text where a cell cannot hold a list."""
    id: str | None = None
    """Column of a record's id; none names records by the file and their place in it."""
    group: str | None = None
    """Column of what a record is about: one group is on one split of a split; none groups records by their prompt."""
    category: str | None = None
    """Column of the category."""
    split: str | None = None
    """Column of the split, `train` or `heldout`."""
    licence: str = ""
    """Licence of the data."""


class PairFile(_JudgedFile):
    """Preference pairs, one record each."""

    prompt: str | None = "prompt"
    """Column of what comes before the replies; none where both sides are whole conversations that differ in their last
    message."""
    chosen: str = "chosen"
    """Column of the reply that is preferred."""
    rejected: str = "rejected"
    """Column of the other reply."""

    @model_validator(mode="after")
    def _whole_conversations_are_messages(self) -> Self:
        if self.prompt is None and self.layout == "text":
            raise ValueError("prompt names no column, so both sides are whole conversations: set layout: messages")
        return self


class LabelFile(_JudgedFile):
    """Labelled replies, one record each."""

    prompt: str | None = None
    """Column of what comes before the reply; none where replies were labelled by themselves, or where with layout
    messages the conversation ends with the reply."""
    reply: str = "text"
    """Column of the reply."""
    label: str = "label"
    """Column of the label."""
    score: str | None = None
    """Column of a number that is higher for what is better; none where `scores` has it, or labels have no order."""
    scores: dict[str, float] = Field(default_factory=dict)
    """Score of each label, for example `{good: 1, bad: 0}`; a label that is not listed is refused."""

    @model_validator(mode="after")
    def _one_source_of_scores(self) -> Self:
        if self.score is not None and self.scores:
            raise ValueError(f"score column {self.score} and scores of labels: give one of them")
        return self
