"""Scenario: one task instance that an episode starts from."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

MAX_TURNS = 64
MAX_TURN_CHARS = 8_000

CATEGORY_CHARACTERS = 200
"""Most characters of a category."""
Domain = Literal["customer_service", "technical_support", "sales", "education", "tool_use", "general"]
Difficulty = Literal["easy", "medium", "hard", "unknown"]
SplitName = Literal["train", "heldout"]


SuccessCriterion = Literal["DB", "ENV_ASSERTION", "NL_ASSERTION", "ACTION", "COMMUNICATE"]
"""A part of success, as in tau-bench's reward basis: the final state, assertions about the state, assertions about the
conversation, the calls that were made, the facts that were communicated."""
NL_ASSERTION = "NL_ASSERTION"
"""The part of success that a language model judges."""

Texts = Annotated[tuple[str, ...], FailFast()]
Objects = Annotated[tuple[dict[str, Any], ...], FailFast()]
"""Lists of which the first wrong item is the error, because an error for each of a million takes a gigabyte."""


class _Record(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        ser_json_inf_nan="constants",  # NaN is rejected when it is stored, not written as null
    )


class Expected(_Record):
    """Expected outcome of an episode, for the environment and rewards."""

    responses: Texts = ()
    """Reference replies of an agent."""
    facts: Texts = ()
    """Facts that the agent must communicate."""
    calls: Objects = ()
    """Tool calls that solve the task, in order: `{"name", "arguments"}`. If the source has them, also `turn`, the
    number of the user turn that the call answers, and `compare_args`, the arguments that must be equal."""
    state: dict[str, Any] = Field(default_factory=dict)
    """The final state of the world."""
    assertions: Texts = ()
    """Statements about the conversation that must be true. A language model judges them."""
    required_documents: Texts = ()
    """Documents of the domain's knowledge base that the task needs, by id."""
    reward_basis: Annotated[tuple[SuccessCriterion, ...], Field(min_length=1)] | None = None
    """Parts of success. None means every part that is expected here. `[DB]` without calls and state means that the
    world must stay unchanged."""

    @field_validator("calls")
    @classmethod
    def _check_calls(cls, calls: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        for number, call in enumerate(calls):
            name, compared, turn = call.get("name"), call.get("compare_args"), call.get("turn", 0)
            if not isinstance(name, str) or not name.strip():
                raise ValueError(
                    f"expected call {number} has no name: {str(call)[:100]}. A call is {{name, arguments}}"
                )
            if not isinstance(call.get("arguments"), dict):
                raise ValueError(
                    f"expected call {number} has no arguments: {name[:100]} needs an object, {{}} for none"
                )
            if type(turn) is not int or turn < 0:
                raise ValueError(f"expected call {number} has a turn that is not a number from 0: {str(turn)[:100]}")
            if compared is not None and not (
                isinstance(compared, (list, tuple)) and all(isinstance(argument, str) for argument in compared)
            ):
                raise ValueError(f"expected call {number} has compare_args that are not names: {str(compared)[:100]}")
        return calls

    @property
    def basis(self) -> tuple[SuccessCriterion, ...]:
        """Parts of success. Facts and assertions count only if some are expected.

        The state counts if anything is expected, or if `reward_basis` names it. A scenario that says nothing about its
        outcome has no basis, because otherwise doing nothing would be a success.
        """
        expected: dict[str, object] = {"NL_ASSERTION": self.assertions, "COMMUNICATE": self.facts}
        if self.reward_basis is None:
            expected["DB"] = self.calls or self.state or self.facts or self.assertions
        named: tuple[SuccessCriterion, ...] = ("DB", "COMMUNICATE", "NL_ASSERTION")
        return tuple(part for part in self.reward_basis or named if expected.get(part, True))

    @property
    def states_success(self) -> bool:
        """True if anything here tells a success from a failure. Reference replies are not enough for that."""
        return self.reward_basis is not None or bool(self.basis)


class Origin(_Record):
    """Sender of a served conversation, as hashes of the serving log, by which the shares of senders are bounded."""

    keys: Annotated[tuple[str, ...], Field(min_length=1)] = ("",)
    """Hashes of the API keys that sent the conversation or a copy of it, the first one first. An unknown key is an
    empty text, so that all conversations without a key count as if one key had sent them."""
    user: str = ""
    """Salted hash of the user's name. Empty if the client names none."""


class Metadata(_Record):
    """Source of a scenario, and the groups that it is counted in."""

    difficulty: Difficulty = "unknown"
    """Group of results besides the category."""
    category: str = Field(default="general", min_length=1, max_length=CATEGORY_CHARACTERS)
    """Group of results, and of the category gate. For triage, the right team."""
    source: str = ""
    """Data set or log that it comes from."""
    licence: str = ""
    """Licence of the data."""
    consent: str = ""
    """Consent of the user who had the conversation."""
    identity: str = Field(default="", max_length=1_000)
    """Name that tells this scenario from others, if the user's text and the world do not. Scenarios with the same
    identity are in the same split. Scenarios with different identities are never near duplicates."""
    origin: Origin | None = None
    """Set by the curation of a retraining for each conversation. None for a base scenario."""

    @model_serializer(mode="wrap")
    def _without_absent_fields(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out an absent identity and origin, so that a scenario's hash depends on them only if they are set."""
        fields: dict[str, Any] = handler(self)
        for name in ("identity", "origin"):
            if not getattr(self, name):
                fields.pop(name, None)
        return fields


class Scenario(_Record):
    """One task instance: a scripted user (`user_responses`) or a simulated one (`goal`), and the expected outcome."""

    id: str = Field(min_length=1, max_length=200)
    """Name, unique in a run."""
    topic: str = ""
    """Subject, for people."""
    domain: Domain = "general"
    """Field of the conversation."""
    user_responses: Texts = ()
    """The user's turns in order. The user begins."""
    goal: str = ""
    """Wishes and knowledge of a simulated user."""
    context: str = ""
    """Background that the agent and the reward may see."""
    tools: Objects = ()
    """Tools of this world: `{"name", "description", "parameters"}`. If a tool is not available from the first user
    turn, `from_turn` is the number of the turn from which it is."""
    world: dict[str, Any] = Field(default_factory=dict)
    """Initial state of the world."""
    expected: Expected = Field(default_factory=Expected)
    """Expected outcome, for the environment and rewards."""
    metadata: Metadata = Field(default_factory=Metadata)
    """Origin, and the groups that results are counted in."""
    split: SplitName | None = None
    """The split that the source declares. If None, the hash of text and world decides."""

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
    def _check_tools(self) -> Scenario:
        for number, tool in enumerate(self.tools):
            if not isinstance(tool.get("name"), str) or not tool["name"].strip():
                raise ValueError(
                    f"tool {number} has no name: {str(tool)[:100]}. A tool is {{name, description, parameters}}"
                )
            schema = next((key for key in ("inputSchema", "input_schema") if key in tool), None)
            if schema is not None and "parameters" not in tool:
                raise ValueError(f"tool {tool['name']} has its parameters under {schema}. Write them under parameters")
            if not isinstance(tool.get("parameters", {}), dict) or not isinstance(tool.get("description", ""), str):
                raise ValueError(f"tool {tool['name']}: description is a text, and parameters are a JSON schema")
            turn = tool.get("from_turn", 0)
            if type(turn) is not int or not 0 <= turn < max(1, len(self.user_responses)):
                raise ValueError(f"tool {tool.get('name')} comes in user turn {turn!r}, which the script does not have")
        return self

    @property
    def text(self) -> str:
        """All text of the user, normalized."""
        return normalize("\n".join((*self.user_responses, self.goal)))

    @property
    def start(self) -> str:
        """Start of an episode, see `episode_start`."""
        return episode_start(self.text, self.world, self.metadata.identity)

    @property
    def hash(self) -> str:
        """Digest of the whole scenario, first 16 hex digits."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]


def episode_start(text: str, world: Mapping[str, Any], identity: str = "") -> str:
    """Start of an episode: the user's text and the world, or the identity if the source states one.

        text "reach the goal", world {"seed": 7}     reach the goal {"seed": 7}
        identity "level 3"                           level 3, whatever text and world are

    Scenarios with the same start are in the same split. Raises `ValueError` or `RecursionError` if JSON cannot hold the
    world.
    """
    if identity:
        return f"identity {identity}"
    return f"{text} {json.dumps(world, sort_keys=True, default=str)}" if world else text


_SPACE = re.compile(r"\s+")
_ETAGS = re.compile(r"[^\w\s]")


def normalize(text: str) -> str:
    """Fold case, compatibility forms, punctuation and spaces.

    "Where's  my ORDER?!" and "wheres my order" → "wheres my order"
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return _SPACE.sub(" ", _ETAGS.sub("", text)).strip().casefold()
