"""Scenario: one task instance that an episode starts from."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

MAX_TURNS = 64
MAX_TURN_CHARS = 8_000

Domain = Literal["customer_service", "technical_support", "sales", "education", "tool_use", "general"]
Difficulty = Literal["easy", "medium", "hard", "unknown"]
SplitName = Literal["train", "heldout"]


SuccessCriterion = Literal["DB", "ENV_ASSERTION", "NL_ASSERTION", "ACTION", "COMMUNICATE"]
"""A part of success, as in tau-bench's reward basis: the final state, assertions on it, assertions about the
conversation, the calls that were made, the facts that were communicated."""


class _Record(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        ser_json_inf_nan="constants",  # NaN is rejected when it is stored, not written as null
    )


class Expected(_Record):
    """Expected outcome of an episode, for the environment and rewards."""

    responses: tuple[str, ...] = ()
    """Reference replies of an agent."""
    facts: tuple[str, ...] = ()
    """Facts that the agent must communicate."""
    calls: tuple[dict[str, Any], ...] = ()
    """Tool calls that solve the task, in order: `{"name", "arguments"}`, and where the source has them, `turn`, the
    number of the user turn that the call answers, and `compare_args`, the arguments that must be equal."""
    state: dict[str, Any] = Field(default_factory=dict)
    """The final state of the world."""
    assertions: tuple[str, ...] = ()
    """Statements about the conversation that must be true; a language model judges them."""
    required_documents: tuple[str, ...] = ()
    """Documents of the domain's knowledge base that the task needs, by id."""
    reward_basis: Annotated[tuple[SuccessCriterion, ...], Field(min_length=1)] | None = None
    """Parts of success; None stands for every part that is expected here."""

    @property
    def basis(self) -> tuple[SuccessCriterion, ...]:
        """Parts of success; facts and assertions count only where some are expected."""
        expected = {"NL_ASSERTION": self.assertions, "COMMUNICATE": self.facts}
        named: tuple[SuccessCriterion, ...] = ("DB", "COMMUNICATE", "NL_ASSERTION")
        return tuple(part for part in self.reward_basis or named if expected.get(part, True))


class Metadata(_Record):
    """Origin of a scenario, and the groups that it is counted in."""

    difficulty: Difficulty = "unknown"
    """Group of results besides the category."""
    category: str = Field(default="general", min_length=1, max_length=200)
    """Group of results, and of the category gate; triage's right team."""
    source: str = ""
    """Data set or log that it comes from."""
    licence: str = ""
    """Licence of the data."""
    consent: str = ""
    """Consent of the user whose conversation it was."""


class Scenario(_Record):
    """One task instance: a scripted user (`user_responses`) or a simulated one (`goal`), and the expected outcome."""

    id: str = Field(min_length=1, max_length=200)
    """Name, unique in a run."""
    topic: str = ""
    """Subject, for people."""
    domain: Domain = "general"
    """Field of the conversation."""
    user_responses: tuple[str, ...] = ()
    """The user's turns in order; the user begins."""
    goal: str = ""
    """Wishes and knowledge of a simulated user."""
    context: str = ""
    """Background that the agent and the reward may see."""
    tools: tuple[dict[str, Any], ...] = ()
    """Tools of this world: `{"name", "description", "parameters"}`, and `from_turn`, the number of the user turn from
    which the tool is available, where that is not the first."""
    world: dict[str, Any] = Field(default_factory=dict)
    """Initial state of the world."""
    expected: Expected = Field(default_factory=Expected)
    """Expected outcome, for the environment and rewards."""
    metadata: Metadata = Field(default_factory=Metadata)
    """Origin, and the groups that results are counted in."""
    split: SplitName | None = None
    """The split that the source declares; None leaves it to the hash of the text."""

    @field_validator("user_responses")
    @classmethod
    def _check_turns(cls, turns: tuple[str, ...]) -> tuple[str, ...]:
        if len(turns) > MAX_TURNS:
            raise ValueError(f"over-long conversation: {len(turns)} user turns, at most {MAX_TURNS}")
        for index, turn in enumerate(turns):
            if not turn.strip():
                raise ValueError(f"user turn {index} is empty")
            if len(turn) > MAX_TURN_CHARS:
                raise ValueError(f"over-long user turn {index}: {len(turn)} characters, at most {MAX_TURN_CHARS}")
        return turns

    @model_validator(mode="after")
    def _check_user(self) -> Scenario:
        if not self.user_responses and not self.goal.strip():
            raise ValueError("no user: give user_responses (a script) or goal (a simulated user)")
        return self

    @model_validator(mode="after")
    def _check_late_tools(self) -> Scenario:
        for tool in self.tools:
            turn = tool.get("from_turn", 0)
            if type(turn) is not int or not 0 <= turn < max(1, len(self.user_responses)):
                raise ValueError(f"tool {tool.get('name')} comes in user turn {turn!r}, which the script does not have")
        return self

    @property
    def text(self) -> str:
        """All text of the user, normalized; scenarios with the same text belong in the same split."""
        return normalize("\n".join((*self.user_responses, self.goal)))

    @property
    def hash(self) -> str:
        """Digest of the whole scenario, first 16 hex digits."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]


_SPACE = re.compile(r"\s+")
_ETAGS = re.compile(r"[^\w\s]")


def normalize(text: str) -> str:
    """Fold case, compatibility forms, punctuation and spaces.

    "Where's  my ORDER?!" and "wheres my order" → "wheres my order"
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return _SPACE.sub(" ", _ETAGS.sub("", text)).strip().casefold()
