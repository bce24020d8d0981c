"""Settings of chats: the format of their records, names of keys and tags, and tables with one row per message."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from grpo.config.base import Settings

LoggedUsers = Literal["script", "goal"]
ChatFormatName = Literal["openai_messages", "sharegpt", "alpaca", "prompt_completion", "input_output"]
_MESSAGE_KEYS = ("role", "content", "tool_calls", "system", "tools", "id")
KEYS: dict[ChatFormatName, tuple[str, ...]] = {
    "openai_messages": _MESSAGE_KEYS,
    "sharegpt": _MESSAGE_KEYS,
    "alpaca": ("instruction", "input", "output", "system", "history", "id"),
    "prompt_completion": ("prompt", "completion", "system", "tools", "id"),
    "input_output": ("input", "output", "expected", "role", "content", "tool_calls", "system", "tools", "id"),
}
"""Keys of the records of each format that `names` can rename."""
Tag = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Tags = dict[Tag, Literal["system", "user", "assistant", "tool", "call", "ignore"]]
"""Meaning of each name of a speaker."""
RowTags = dict[Tag, Literal["system", "user", "assistant", "ignore"]]
"""Meaning of each name of a speaker in a table."""
Key = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class ChatSettings(Settings):
    """Names in the records of chats, and the form of the user."""

    column: Key | None = None
    """Key or column of the list of messages. None takes `messages` or `conversations`."""
    names: dict[Key, Key] = Field(default_factory=dict)
    """Names of other keys in these records, `{role: speaker, content: text}`. The common ones need no entry. In
    input_output, dots lead into objects: `{input: fields.question}`."""
    tags: Tags = Field(default_factory=dict)
    """Meaning of names of speakers, `{customer: user, bot: assistant}`: system, user, assistant, tool (a result), call
    (a tool call as JSON) or ignore. The common ones need no entry."""
    users: LoggedUsers = "script"
    """The user's turns as a script, or as the goal of a simulated user in the user's own words."""

    @property
    def format(self) -> ChatFormatName:
        """Format of the records."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _keys_of_the_format(self) -> Self:
        known = KEYS[self.format]
        unknown = [key for key in self.names if key not in known]
        if unknown:
            raise ValueError(f"names has the key {unknown[0]}, but {self.format} has only the keys {', '.join(known)}")
        if self.format in ("alpaca", "prompt_completion") and (self.column or self.tags):
            raise ValueError(
                f"column and tags have no effect with {self.format}. Name the keys of its records in names"
            )
        if self.format == "input_output" and self.column:
            raise ValueError(
                "column has no effect with input_output. Name the keys of its records in names, such as input"
            )
        return self


class ChatColumns(ChatSettings):
    """Chats in the rows of a table."""

    kind: ChatFormatName = "openai_messages"
    """Format of the chats: OpenAI's chat messages, ShareGPT, Alpaca, a prompt with its completion, or an input with
    its output."""

    @property
    def format(self) -> ChatFormatName:
        """Format of the records."""
        return self.kind


class MessageRows(Settings):
    """Table with one row per message, as help desks export it, or with one per message and its reply.

    Dots in the name of a column lead into objects, also if they are JSON in a text: `author.role`.
    """

    group_by: Key | None = None
    """Column of the conversation. None means that all rows are one conversation."""
    speaker: Key | None = None
    """Column of who wrote the message. None if a row has the user's message and, in `reply`, the agent's reply."""
    text: Key
    """Column of the message."""
    reply: Key | None = None
    """Column of the agent's reply, if a row has both. If the cell is empty, the agent did not reply."""
    order: Key | Annotated[tuple[Key, ...], Field(min_length=1)] | None = None
    """Column that orders the messages of a conversation, an ISO 8601 time, a time of day or a number, or several such
    columns, of which a later one decides if the values of the earlier ones are equal, e.g. `[date, time]`. None keeps
    the order of the table."""
    where: dict[Key, Annotated[tuple[str, ...], Field(min_length=1)]] = Field(default_factory=dict)
    """Read only rows with these values, `{public: ["true"]}`, because the user does not see internal notes."""
    without: dict[Key, Annotated[tuple[str, ...], Field(min_length=1)]] = Field(default_factory=dict)
    """Leave out rows with one of these values, `{type: [note]}`. Rows with no value are read."""
    tags: RowTags = Field(default_factory=dict)
    """Meaning of the values of the speaker's column, `{"end-user": user, note: ignore}`. Common ones need no entry."""
    users: LoggedUsers = "script"
    """The user's turns as a script, or as the goal of a simulated user in the user's own words."""

    @property
    def orders(self) -> tuple[str, ...]:
        """Columns that order the messages, the most significant first."""
        if self.order is None:
            return ()
        return (self.order,) if isinstance(self.order, str) else self.order

    @property
    def places(self) -> tuple[str, ...]:
        """Columns that every message needs, see `places.value_at`."""
        names = (self.group_by, self.speaker, self.text, self.reply, *self.orders)
        return tuple(name for name in names if name is not None)

    @model_validator(mode="after")
    def _who_speaks(self) -> Self:
        if (self.speaker is None) == (self.reply is None):
            raise ValueError("messages: give speaker if a row is one message, or reply if it has two, and not both")
        if self.reply is not None and self.tags:
            raise ValueError("messages: tags are values of speaker, and there is none with reply. Leave tags out")
        return self
