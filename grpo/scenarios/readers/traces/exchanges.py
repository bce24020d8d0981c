"""An input with its output, as exports of data sets, experiments and evaluations write it.

    {"input": "2 + 2?", "expected": "4"}                                    Braintrust, Langfuse (expectedOutput)
    {"input": [{"role": "user", "content": "2 + 2?"}], "ideal": ["4", "four"]}            OpenAI evals
    {"inputs": {"question": "2 + 2?"}, "outputs": {"answer": "4"}}          LangSmith, Phoenix
    {"fields": {"instruction": "2 + 2?", "response": "4"}}         Argilla, names {input: fields.instruction}
    {"query": "2 + 2?", "tools": "[…]", "answers": "[{…}]"}      xLAM, names {input: query, expected: answers}

The input is the user's text, a list of messages, a list of texts of which the user says the first, an object with
`messages`, or an object with a question. The output is a text, a message, a completion, or an object with an answer.
`expected` is what the output should be. If a record has it, it gives the references, and the output is left out because
it is what some model replied. If the record has tools, what is expected may also be a list of their calls. A record
becomes messages and a response in OpenAI's format.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo.data_errors import excerpt
from grpo.scenarios.readers.files.places import parsed, value_at
from grpo.scenarios.readers.messages.langchain_messages import openai_messages, reply_messages
from grpo.scenarios.readers.messages.transcripts import refuse_transcript

QUESTIONS = (
    "question", "query", "input", "prompt", "instruction", "user_input", "user_query", "text", "message", "content",
    "problem",
)  # fmt: skip
"""Names of a user's text in an object."""
ANSWERS = (
    "answer", "output", "response", "completion", "reply", "text", "content", "result", "value", "ideal", "expected",
    "label",
)  # fmt: skip
"""Names of a reply in an object."""
EXPECTED = (
    "expected", "expected_output", "expectedOutput", "ideal", "reference", "reference_output", "reference_answer",
    "target", "ground_truth", "correct_answer", "correct_label", "label",
)  # fmt: skip
"""Names of what the output should be, for a guess of the settings."""
_SYSTEM = ("system", "system_prompt", "context")
_CHATS = ("messages", "chat", "conversation", "history")
_CALL_KEYS = {"name", "arguments", "args", "id", "type"}
_SHOWN = 80  # characters of a value in a reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Messages of an input, and the replies to it."""

    record: dict[str, Any]
    """Messages, tools, system prompt, and a response if there is one, see `grpo.scenarios.readers.chat_records`."""
    references: tuple[str, ...]
    """Further replies that are right as well."""
    read: frozenset[str]
    """Keys of the record that were read."""
    ignored: tuple[str, ...]
    """Parts of the input and the output that were not read."""


def read_exchange(data: Mapping[str, Any], names: Mapping[str, str]) -> Exchange:
    """The exchange of a record. `names` are the keys of `input`, `output` and `expected`, with dots into objects.

    Raises `ValueError` if the input is missing or cannot be read.
    """
    keys = {name: names.get(name, name) for name in ("input", "output", "expected", "tools", "system")}
    is_response = isinstance(data.get("output"), list) and isinstance(data.get("instructions"), str)
    if is_response and keys["system"] not in data:
        keys["system"] = "instructions"  # of OpenAI's Responses API
    given = value_at(data, keys["input"])
    if given in (None, "", [], {}):
        raise ValueError(
            f"no {keys['input']}: the record has {', '.join(data) or 'no field'}. Name its key in the source's names"
        )
    ignored: list[str] = []
    output, expected = (_unpacked(value_at(data, keys[name])) for name in ("output", "expected"))
    is_answered = any(value not in (None, "", [], {}) for value in (output, expected))
    record = _input(_unpacked(given), keys["input"], ignored, is_answered=is_answered)
    for name in ("tools", "system"):
        if (value := value_at(data, keys[name])) is not None:
            record[name] = value
    if record.get("tools") and (calls := _calls(expected)) is not None:
        expected = {"role": "assistant", "content": None, "tool_calls": calls} if calls else None
    references: tuple[str, ...] = ()
    if expected not in (None, "", [], {}):
        message, references = _expected(expected, keys["expected"], ignored)
        record["messages"] = [*_without_reply(record["messages"], ignored), message]
        if output not in (None, "", [], {}):
            ignored.append(f"record.{keys['output']}: the reply of some model, because {keys['expected']} is given")
    elif output not in (None, "", [], {}):
        record["response"] = _output(output, keys["output"], ignored)
    read = frozenset(key if key in data else key.partition(".")[0] for key in keys.values())
    return Exchange(record=record, references=references, read=read, ignored=tuple(ignored))


def are_calls(value: Any) -> bool:
    """Return True for a list of calls: [{"name": "look_up", "arguments": {"order": "7"}}, …], also in OpenAI's form."""
    return isinstance(value, list) and bool(value) and all(map(_is_call, value))


def _calls(value: Any) -> list[dict[str, Any]] | None:
    """Calls in OpenAI's form of a list of calls or of a single one. None for anything else."""
    value = parsed(value)
    listed = [value] if _is_call(value) else value
    return list(map(_call, listed)) if are_calls(listed) or listed == [] else None


def _is_call(value: Any) -> bool:
    inner = value.get("function", value) if isinstance(value, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str) or not {*inner} <= _CALL_KEYS:
        return False
    return isinstance(parsed(_arguments(inner)), Mapping)


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    inner = call.get("function", call)
    return {"id": call.get("id"), "function": {"name": inner["name"], "arguments": _arguments(inner)}}


def _arguments(call: Mapping[str, Any]) -> Any:
    return call.get("arguments", call.get("args"))


def _unpacked(value: Any) -> Any:
    """A chat or a completion, also if it is JSON in a text. Any other text stays, because it may have to be JSON."""
    inner = parsed(value)
    if not isinstance(value, str) or isinstance(inner, str):
        return value
    parts = inner if isinstance(inner, list) else [inner]
    return inner if parts and all(map(_is_of_chat, parts)) else value


def _is_of_chat(part: Any) -> bool:
    """True for a message, a completion, one of its choices, or an object with a chat."""
    if not isinstance(part, Mapping):
        return False
    return bool({"role", "messages", "choices", *_CHATS} & {*part}) or isinstance(part.get("message"), Mapping)


def _input(value: Any, place: str, ignored: list[str], *, is_answered: bool) -> dict[str, Any]:
    if isinstance(value, str):
        refuse_transcript(value, place)
        return {"messages": [{"role": "user", "content": value}]}
    if isinstance(value, list):
        return {"messages": _messages(value, place, is_answered=is_answered)}
    if not isinstance(value, Mapping):
        return {"messages": [{"role": "user", "content": _text(value)}]}
    if isinstance(value.get("role"), str):
        return {"messages": [dict(value)]}
    for key in _CHATS:
        if isinstance(chat := parsed(value.get(key)), list) and chat:
            kept = {name: value[name] for name in ("tools", "functions", "system") if value.get(name) is not None}
            question = _first(value, QUESTIONS) if key != "messages" else None
            asked = [] if question is None else [{"role": "user", "content": value[question]}]
            ignored += _unread(value, place, (key, *kept, *((question,) if question else ())))
            is_last = is_answered and not asked
            return {**kept, "messages": [*_messages(chat, f"{place}.{key}", is_answered=is_last), *asked]}
    question = _first(value, QUESTIONS)
    texts = [name for name, item in value.items() if isinstance(item, str) and item.strip()]
    if question is None and len(texts) == 1 and texts[0] not in _SYSTEM:
        question = texts[0]
    if question is None:
        shown = excerpt(", ".join(map(str, value)), _SHOWN)
        raise ValueError(f"no question in {place}: it has {shown}. Name the user's text in names: input: {place}.NAME")
    system = _first(value, _SYSTEM)
    ignored += _unread(value, place, (question, *((system,) if system else ())))
    refuse_transcript(_text(value[question]), f"{place}.{question}")
    messages = [{"role": "user", "content": value[question]}]
    return {"messages": messages, **({"system": value[system]} if system else {})}


def _messages(value: Sequence[Any], place: str, *, is_answered: bool) -> list[Any]:
    """Messages in OpenAI's format. In a list of texts, the user and the agent speak in turn.

    Raises `ValueError` if the agent would have the last text of a chat that has an answer, because then the texts may
    all be the user's.
    """
    if all(isinstance(item, str) for item in value):
        if is_answered and len(value) % 2 == 0:
            raise ValueError(
                f"{len(value)} texts in {place}: if user and agent speak in turn, the agent has the last one, and the "
                "record has an answer as well. Write messages with roles"
            )
        return [{"role": "user" if k % 2 == 0 else "assistant", "content": text} for k, text in enumerate(value)]
    messages = openai_messages(value)
    if not all(isinstance(message, Mapping) for message in messages):
        raise ValueError(f"{place} is neither a list of messages nor of texts")
    return list(messages)


def _output(value: Any, place: str, ignored: list[str]) -> Any:
    """Response to messages: a completion, or a text."""
    messages = _replies(value)
    if len(messages) > 1:
        raise ValueError(f"several messages in {place}: {len(messages)}. Read the record as openai_messages")
    if messages:
        return {"choices": [{"message": messages[0]}]}
    return _answer(value, place, ignored)


def _expected(value: Any, place: str, ignored: list[str]) -> tuple[Any, tuple[str, ...]]:
    """Message that should be the reply, and the texts of others that are right as well."""
    messages = _replies(value)
    if len(messages) > 1:
        raise ValueError(f"several messages in {place}: {len(messages)}. Name another key in names: expected")
    if messages:
        return messages[0], ()
    texts = [_text(item) for item in value] if isinstance(value, list) else [_answer(value, place, ignored)]
    return {"role": "assistant", "content": texts[0]}, tuple(texts[1:])


def _replies(value: Any) -> list[Any]:
    """Messages of a completion, of its choices, or of a message. Empty for a text and for an object with an answer."""
    if isinstance(value, list):
        if not all(isinstance(item, Mapping) for item in value):
            return []
        choices = all("message" in item for item in value)
        return reply_messages({"choices": value}) if choices else reply_messages(value)
    if isinstance(value, Mapping) and "role" not in value and value.get("tool_calls"):
        value = {**value, "role": "assistant"}
    return reply_messages(value)


def _answer(value: Any, place: str, ignored: list[str]) -> str:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        raise ValueError(f"several texts in {place}: {len(value)}. Name another key in names")
    if not isinstance(value, Mapping):
        return _text(value)
    answer = _first(value, ANSWERS)
    texts = [name for name, item in value.items() if isinstance(item, (str, int, float)) and item != ""]
    if answer is None and len(texts) == 1:
        answer = texts[0]
    if answer is None:
        shown = excerpt(", ".join(map(str, value)), _SHOWN)
        raise ValueError(f"no answer in {place}: it has {shown}. Name its key in the source's names, as {place}.NAME")
    ignored += _unread(value, place, (answer,))
    return _text(value[answer])


def _without_reply(messages: Sequence[Any], ignored: list[str]) -> list[Any]:
    """The messages without a reply at their end, which some model gave."""
    last = messages[-1]
    if (
        len(messages) > 1
        and isinstance(last, Mapping)
        and last.get("role") == "assistant"
        and not last.get("tool_calls")
    ):
        ignored.append("message: the reply that the input ends with, because another one is expected")
        return list(messages[:-1])
    return list(messages)


def _first(value: Mapping[str, Any], names: Iterable[str]) -> str | None:
    """The first of these names with a text or a number."""
    return next((name for name in names if isinstance(value.get(name), (str, int, float)) and value[name] != ""), None)


def _unread(value: Mapping[str, Any], place: str, read: Sequence[str]) -> list[str]:
    return [
        f"{place}.{excerpt(name, 40)}: unknown"
        for name, item in value.items()
        if name not in read and item not in (None, "", [], {})
    ]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
