"""Parts of request bodies that follow OpenAI's schema: null is absent, and a fault names its field.

    {"seed": null}                        no seed
    {"prompt_cache_key": "a"}             no effect on the words, so it is accepted, see `Ignored`
    {"audio": {"format": "wav"}}          would change the reply, not supported: 400 with `audio`, see `refused`

The tags of a union begin with `|`. They tell which form of a value was meant, and are left out of the path in errors.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from grpo.serving.protocol.json_bounds import BoundedFields

MAX_PARTS = 256
"""Maximum number of parts in the content of a message, and of calls in a message."""
NAME_CHARACTERS = 256
"""Maximum characters of a name or an id, which is short because it is not part of a prompt."""
TAG = "|"
"""First character of the tag of a union's form."""


class Fault(ValueError):
    """Fault of a field if a validator of the whole object detects it. `param` is the field's name in the object."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class Part(BoundedFields):
    """Object of a request. A field that is null counts as absent, because OpenAI's clients send it for unset fields."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        return without_null_fields(value)


def without_null_fields(value: Any) -> Any:
    """An object without its fields that are null. Any other value stays as it is."""
    return {name: part for name, part in value.items() if part is not None} if isinstance(value, dict) else value


Ignored = Annotated[Any, Field(default=None)]
"""Field that does not affect the words of the reply. Any value is accepted."""


def refused(reason: str, *, neutral: tuple[Any, ...] = ()) -> BeforeValidator:
    """Validator of an unsupported field that would change the reply. Accepts only empty and `neutral` values."""

    def check(value: Any) -> None:
        if value and value not in neutral:
            raise ValueError(reason)

    return BeforeValidator(check)


def _text_or_parts(value: Any) -> str | None:
    return f"{TAG}text" if isinstance(value, str) else f"{TAG}parts" if isinstance(value, list) else None


def _readable(value: Any) -> Any:
    if isinstance(value, str) and value not in ("text", "refusal"):
        raise ValueError(f"{value[:40]!r} is not read. This model reads text")
    return value


class ContentPart(Part):
    """Part of a message: text, or the text with which a model has refused to answer."""

    type: Annotated[Literal["text", "refusal"], BeforeValidator(_readable)]
    text: str | None = None
    refusal: str | None = None
    annotations: Ignored
    prompt_cache_breakpoint: Ignored
    cache_control: Ignored

    @model_validator(mode="after")
    def _has_text(self) -> ContentPart:
        if getattr(self, self.type) is None:
            raise Fault(self.type, f"a part of the type {self.type} has this field")
        return self

    @property
    def words(self) -> str:
        """The text, of either type."""
        return self.text or self.refusal or ""


Content = Annotated[
    Annotated[str, Tag(f"{TAG}text")]
    | Annotated[list[ContentPart], Field(fail_fast=True, max_length=MAX_PARTS), Tag(f"{TAG}parts")],
    Discriminator(
        _text_or_parts, custom_error_type="content_type", custom_error_message="content is a text or a list of parts"
    ),
]
"""Content of a message."""


def words_of(content: str | list[ContentPart] | None) -> str:
    """Content as one text."""
    if isinstance(content, list):
        return "".join(part.words for part in content)
    return content or ""
