"""Constraints of a request on its reply, as grammars: structured output, calls that are required, strict arguments.

    request    response_format, tool_choice, strict, parallel_tool_calls ─► grammar ─► tried in a process ─► engine

Schemas come from strangers. Their characters and values are bounded before they are compiled. Compilation is bounded in
time and memory, and runs in a process of its own, one grammar after another. Keys take turns, so that a key that sends
one large schema after another does not keep the others waiting, and the time counts in its budget of refused requests.
Results are cached, also refusals, except of grammars that ran out of time, because this depends on the machine's load.
If replies cannot be constrained by a schema, the error names the schema's keyword.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, finalize

from grpo.messages import Tool
from grpo.renderers.chat_template import Renderer
from grpo.renderers.reply_grammar import ANY_OBJECT, NoGrammar, ReplyShape
from grpo.serving.access.preparation import Lane, add_cpu_s
from grpo.serving.engine.engine import ProcessPolicy
from grpo.serving.protocol.api_errors import APIError, invalid_request, overloaded
from grpo.serving.protocol.chat_request import ChatRequest
from grpo.serving.protocol.chat_tools import SCHEMA_CHARACTERS, JsonObjectFormat, JsonSchemaFormat
from grpo.serving.requests.grammar_process import GrammarProcess, Trial
from grpo.strict_json import encode

if TYPE_CHECKING:
    from grpo.serving.engine.versions import ServedVersion

SCHEMA_VALUES = 4_000
"""Most values in the schemas of one request, because in the worst case compilation time grows with their square."""
_COMPILE_S = 5.0
"""Time limit of one compilation, after which the request is refused."""
_WAITING = 16
"""Most grammars that may wait for the process. One key may have half of them."""
_REMEMBERED = 256
_PLACE = re.compile(r"^.*?failed to compile JSON schema: ", re.DOTALL)
"""Place in the grammar, which is not the client's."""
_ADVICE = re.compile(r"\. Enable '\w+' option.*", re.DOTALL)
"""Advice to the caller of the library, who is not the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """Grammar of the replies to a request."""

    kind: str
    """Names of the constraints as they are logged, e.g. `json_schema` or `required, strict`."""
    grammar: str
    param: str
    """Parameter that an error names if the grammar is refused."""
    completes: bool
    """True if a reply that comes near its limit of tokens is completed, because it is JSON and never a call."""


def constraint_of(request: ChatRequest, tools: Sequence[Tool], renderer: Renderer) -> Constraint | None:
    """Constraint of a request with the tools of its conversation, or None if the reply is free.

    Raises `APIError` if a tool is missing, if the schemas are too large, or if the calls have no grammar.
    """
    names = _allowed(request, tools)
    kinds = {
        "required": request.must_call,
        "strict": bool(request.strict_names) and not request.calls_nothing,
        "allowed": request.allowed_names is not None and not request.must_call,
        "one call": not request.parallel_tool_calls and bool(tools) and not request.calls_nothing,
    }
    schema, named = _schema(request)
    if not any(kinds.values()) and schema is None:
        return None
    calls = None if request.calls_nothing else _calls(request, renderer, names)
    kind = [*([named] if schema is not None else []), *(name for name, holds in kinds.items() if holds)]
    param = "response_format" if schema is not None else "parallel_tool_calls"
    if kinds["strict"] or request.must_call:
        param = "tools"
    _check_sizes([*([schema] if schema is not None else []), *(calls or {}).values()], param)
    shape = ReplyShape(
        schema=None if request.must_call else schema,
        has_text=not request.must_call,
        calls=calls,
        one_call=not request.parallel_tool_calls,
    )
    try:
        grammar = renderer.reply_grammar(shape)
    except NoGrammar as error:
        raise invalid_request(str(error), param=param, code="unsupported_value") from error
    return Constraint(kind=", ".join(kind), grammar=grammar, param=param, completes=not calls)


def _schema(request: ChatRequest) -> tuple[Mapping[str, Any] | None, str]:
    """Schema of a reply without calls, and the name of its kind."""
    wanted = request.response_format
    if isinstance(wanted, JsonObjectFormat):
        return ANY_OBJECT, "json_object"
    if isinstance(wanted, JsonSchemaFormat):
        return wanted.json_schema.schema_, "json_schema"
    return None, ""


def _allowed(request: ChatRequest, tools: Sequence[Tool]) -> frozenset[str]:
    """Names of the client's tools that may be called. Raises `APIError` if the request names a tool that is missing."""
    known = {tool.name for tool in tools}
    names = request.allowed_names
    if unknown := [name for name in names or () if name not in known]:
        message = f"tool_choice names {unknown[0]}, and the tools are {', '.join(sorted(known)) or 'none'}"
        raise invalid_request(message, param="tool_choice")
    if request.must_call and not known:
        raise invalid_request("tool_choice requires a call, but the request has no tools", param="tool_choice")
    return frozenset(known if names is None else names)


def _calls(request: ChatRequest, renderer: Renderer, names: frozenset[str]) -> dict[str, Mapping[str, Any]]:
    """Schema of the arguments of each tool that may be called.

    The tool's own schema applies if a call is required, if the tool is strict, or if it has no parameters, so that it
    takes no arguments. Otherwise the arguments may be any object. If calls are required, or limited to some tools, the
    agent's own tools are left out.
    """
    limited = request.must_call or request.allowed_names is not None
    calls: dict[str, Mapping[str, Any]] = {}
    for tool in renderer.tools:
        if tool.name in names or not limited:
            takes_none = not tool.parameters or tool.parameters.get("properties") == {}
            kept = request.must_call or takes_none or tool.name in request.strict_names
            calls[tool.name] = _arguments(tool) if kept else ANY_OBJECT
    return calls


def _arguments(tool: Tool) -> Mapping[str, Any]:
    """Schema of arguments: an object that has only the tool's properties, unless the tool allows others.

    Raises `APIError` if the tool's schema is not of objects.
    """
    parameters = tool.parameters or {"properties": {}}
    types = parameters.get("type", "object")
    if "object" not in (types if isinstance(types, list) else [types]):
        raise refused_schema(
            f"the parameters of {tool.name} have the type {types}, and arguments are an object", "tools"
        )
    if not parameters.get("properties") and not parameters.keys() - {"type", "properties", "title", "description"}:
        return {"type": "object", "properties": {}, "additionalProperties": False} if "properties" in parameters else (
            ANY_OBJECT
        )  # fmt: skip
    return {"additionalProperties": False, **parameters, "type": "object"}


def _check_sizes(schemas: Sequence[Mapping[str, Any]], param: str) -> None:
    """Raise `APIError` if the schemas are too large to be compiled quickly."""
    texts = [encode(dict(schema)) for schema in schemas]
    characters, values = sum(map(len, texts)), sum(1 + sum(map(text.count, ",[{")) for text in texts)
    if characters > SCHEMA_CHARACTERS or values > SCHEMA_VALUES:
        message = (
            f"the schemas have {characters} characters and {values} values. A reply is constrained by "
            f"{SCHEMA_CHARACTERS} and {SCHEMA_VALUES} at most"
        )
        raise invalid_request(message, param=param)


class Constraints:
    """Grammars of the loaded versions, compiled before a request is admitted."""

    def __init__(self, *, compile_s: float = _COMPILE_S) -> None:
        self._compile_s = compile_s
        self._lane = Lane("grammars", _WAITING)
        self._processes: WeakKeyDictionary[ServedVersion, GrammarProcess] = WeakKeyDictionary()
        self._results: OrderedDict[tuple[str, str], str | None] = OrderedDict()
        """Reason why a grammar is refused, or None if it is not, by version and grammar."""

    async def check(self, constraint: Constraint, version: ServedVersion, renderer: Renderer, *, key: str) -> None:
        """Compile a grammar, or look up its result. If it is refused, raises `APIError`, which names the keyword.

        `key` is the caller's hash.
        """
        policy = version.served.policy
        if not isinstance(policy, ProcessPolicy) or type(renderer) is not Renderer:
            message = (
                f"{constraint.param} is not supported for this model, because a custom renderer or another server "
                "writes replies"
            )
            raise invalid_request(message, param=constraint.param, code="unsupported_value")
        name = (version.served.version, constraint.grammar)
        if name in self._results:
            self._results.move_to_end(name)
            reason = self._results[name]
        else:
            trial = await self._compile(constraint, self._process_of(version, policy, renderer), key)
            reason = trial.reason
            if not trial.timed_out:
                self._results[name] = reason
                if len(self._results) > _REMEMBERED:
                    self._results.popitem(last=False)
        if reason is not None:
            raise refused_schema(" ".join(_ADVICE.sub("", _PLACE.sub("", reason)).split()), constraint.param)

    def _process_of(self, version: ServedVersion, policy: ProcessPolicy, renderer: Renderer) -> GrammarProcess:
        """The process of a version. It ends when the version is not used any more."""
        if version not in self._processes:
            process = GrammarProcess(policy.tokenizer, renderer.stop_ids, compile_s=self._compile_s)
            self._processes[version] = process
            finalize(version, process.close)
        return self._processes[version]

    async def _compile(self, constraint: Constraint, process: GrammarProcess, key: str) -> Trial:
        """Compile a grammar when it is its key's turn. The time is charged if the request is refused."""
        if self._lane.is_full(key, 1):
            raise overloaded("too many schemas wait to be compiled. Try again in 1 s", retry_after_s=1.0)
        trial: Trial = await self._lane.run(key, 1, partial(process.compile, constraint.grammar))
        add_cpu_s(trial.seconds)
        return trial

    def close(self) -> None:
        """End the thread and the processes."""
        self._lane.close()
        for process in list(self._processes.values()):
            process.close()


def refused_schema(reason: str, param: str) -> APIError:
    """400 for a schema that replies cannot be constrained by."""
    return invalid_request(
        f"replies cannot be constrained by this schema: {reason[:300]}", param=param, code="invalid_schema"
    )
