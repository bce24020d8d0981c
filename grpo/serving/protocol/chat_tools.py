"""Tools of a chat request, the tool choice, and the format of the reply.

Constrained decoding enforces the tool choice and the format, see `grpo.serving.requests.constraints`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from grpo.messages import Tool
from grpo.serving.protocol.request_parts import TAG, Ignored, Part, without_null_fields
from grpo.strict_json import NotStrictJSON, encode

MAX_TOOLS = 128
SCHEMA_CHARACTERS = 65_536
"""Most characters in the JSON schemas that constrain a reply."""
FunctionName = Annotated[str, Field(pattern=r"^[\w-]{1,64}$")]


def _function_only(value: Any) -> Any:
    if isinstance(value, str) and value != "function":
        raise ValueError(f"{value[:40]!r} is not run here. Send the tools of the type function, which the client runs")
    return value


FunctionType = Annotated[Literal["function"], BeforeValidator(_function_only)]


def _is_json(schema: dict[str, Any]) -> dict[str, Any]:
    try:
        encode(schema)
    except NotStrictJSON as error:
        raise ValueError("the schema is not JSON: a number is not finite, or a text not Unicode") from error
    return schema


Schema = Annotated[dict[str, Any], Field(default_factory=dict), BeforeValidator(_is_json)]


def _has_properties(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema of arguments as chat templates read it: with an object of schemas as its properties, if it has any.

    Some clients write null for an empty object or list.
    """
    schema = without_null_fields(schema)
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        raise ValueError(f"properties is not an object: {type(properties).__name__}")
    wrong = next((name for name, part in properties.items() if not isinstance(part, (dict, bool))), None)
    if wrong is not None:
        raise ValueError(f"properties.{wrong[:40]} is not a schema: {type(properties[wrong]).__name__}")
    if not isinstance(schema.get("required", []), (list, bool)):
        raise ValueError(f"required is not a list: {type(schema['required']).__name__}")
    return schema


class FunctionTool(Part):
    """Description of a function that the client runs."""

    name: FunctionName
    description: str = ""
    parameters: Annotated[Schema, AfterValidator(_has_properties)]
    strict: bool = False
    """If True, the arguments of calls are always valid by `parameters`."""


class ToolPart(Part):
    """Tool that the client runs."""

    type: FunctionType
    function: FunctionTool
    cache_control: Ignored

    def to_tool(self) -> Tool:
        """Tool as the renderer reads it."""
        function = self.function
        return Tool(name=function.name, description=function.description, parameters=function.parameters)


class NamedFunction(Part):
    """Name of a tool."""

    name: FunctionName


class NamedTool(Part):
    """One tool, which must be called."""

    type: FunctionType
    function: NamedFunction


class AllowedTools(Part):
    """Tools that may be called, or if `mode` is required, tools of which one must be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolsChoice(Part):
    """Choice of some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _form_of_choice(value: Any) -> str:
    if isinstance(value, dict):
        return f"{TAG}allowed" if value.get("type") == "allowed_tools" else f"{TAG}named"
    return f"{TAG}word"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag(f"{TAG}word")]
    | Annotated[NamedTool, Tag(f"{TAG}named")]
    | Annotated[AllowedToolsChoice, Tag(f"{TAG}allowed")],
    Discriminator(_form_of_choice),
]


class TextFormat(Part):
    """Format of the reply: text."""

    type: Literal["text"]


class JsonObjectFormat(Part):
    """Format of the reply: a JSON object."""

    type: Literal["json_object"]


class JsonSchema(Part):
    """Schema of the reply."""

    name: FunctionName
    description: str | None = None
    schema_: Schema = Field(alias="schema")
    strict: bool = False
    """Without effect, because replies are always valid by the schema."""


class JsonSchemaFormat(Part):
    """Format of the reply: JSON that is valid by a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


def _form_of_format(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else None
    return f"{TAG}{kind}" if kind in ("text", "json_object", "json_schema") else None


ResponseFormat = Annotated[
    Annotated[TextFormat, Tag(f"{TAG}text")]
    | Annotated[JsonObjectFormat, Tag(f"{TAG}json_object")]
    | Annotated[JsonSchemaFormat, Tag(f"{TAG}json_schema")],
    Discriminator(
        _form_of_format,
        custom_error_type="response_format_type",
        custom_error_message="its type is text, json_object or json_schema",
    ),
]
