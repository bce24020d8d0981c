"""Chats, one per record: fine-tuning files, logged requests, batches, ShareGPT, Alpaca, prompts with completions.

    openai_messages     {"messages": […], "tools": […], "id": "a", "metadata": {"category": "delivery"}}
                        {"request": {"messages": […], "tools": […]}, "response": {"choices": [{"message": {…}}]}}
                        {"custom_id": "a", "method": "POST", "url": …, "body": {"messages": […]}}     input of a batch
                        {"custom_id": "a", "response": {"body": {"choices": […]}}}   output, joined with its input
                        {"mapping": {…}, "current_node": "d"}, and other exports of chat programs, see
                        `grpo.scenarios.readers.exports.chat_programs`
    sharegpt            {"conversations": [{"from": "human", "value": "Where is order 7?"}, …], "system": …, "tools": …}
    alpaca              {"instruction": "Translate.", "input": "Hallo", "output": "Hello", "history": [["…", "…"]]}
    prompt_completion   {"prompt": "2 + 2?", "completion": "4"}, or lists of messages
    input_output        {"input": "2 + 2?", "expected": "4"}, see `grpo.scenarios.readers.traces.exchanges`

Everything but the messages may be absent. The first two formats differ only in the key under which the messages are
looked up first. Keys and tags of one format are also known in the other. A record without an id is named by its file,
line and digest. What is not read is counted, see `grpo.scenarios.readers.messages.openai_fields`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from grpo.artifacts import local_path
from grpo.config.chats import ChatColumns, ChatFormatName, ChatSettings
from grpo.config.scenarios import ChatSource
from grpo.data_errors import excerpt, try_call
from grpo.scenarios.logged_chat import MAX_MESSAGES, ChatOrigin, LoggedChat, LoggedMessage, chat_fields
from grpo.scenarios.message_order import is_time_name
from grpo.scenarios.readers.exports.chat_programs import program_of
from grpo.scenarios.readers.exports.message_links import OTHER_BRANCHES, shown_branch
from grpo.scenarios.readers.exports.openai_batches import join_batch
from grpo.scenarios.readers.exports.record_file import column_of_chats, read_objects
from grpo.scenarios.readers.files.filled_nulls import without_filled_nulls
from grpo.scenarios.readers.files.json_cells import cell_value
from grpo.scenarios.readers.files.places import value_at, without
from grpo.scenarios.readers.messages.api_dialects import is_system_key, rewrite_record, rewrite_reply
from grpo.scenarios.readers.messages.chat_dialects import openai_messages, tools_in_prompt
from grpo.scenarios.readers.messages.logged_requests import LISTS, with_request
from grpo.scenarios.readers.messages.openai_fields import RECORD, REQUEST, left_out
from grpo.scenarios.readers.messages.openai_format import parse_messages, parse_tools, reply_of, with_reply
from grpo.scenarios.readers.messages.speakers import SPEAKERS, speaker_name
from grpo.scenarios.readers.messages.transcripts import refuse_transcript
from grpo.scenarios.readers.messages.written_calls import with_written_calls
from grpo.scenarios.readers.traces.exchanges import read_exchange
from grpo.scenarios.records import Converted, SourceRecord, convert_record, record_name
from grpo.scenarios.times import instant, time_of_day

_FIRST_LISTS = {"openai_messages": ("messages",), "sharegpt": ("conversations",)}
"""Key under which a format has its list of messages. It is looked up before the others."""
_LABELS = ("label", "kto_tag")
"""Labels of a reply as desired or undesired, as TRL and LLaMA-Factory write them for KTO."""
_VERDICTS = (*_LABELS, "rating", "feedback", "thumbs", "vote", "verdict")
"""Keys under which a word is a label too. A number under a key that is not in `_LABELS` may be a number of stars."""
_WORDS = {
    **dict.fromkeys(("good", "desirable", "desired", "accepted", "approved", "like", "thumbs_up"), True),
    **dict.fromkeys(("bad", "undesirable", "undesired", "rejected", "dislike", "thumbs_down"), False),
}
_PLACE_KEYS = ("id", "metadata", "custom_id")
_CLOCKS_S = 1.0  # seconds by which clocks of several machines may differ
_LONGEST_DURATION = 10**8  # seconds, which are three years. The time of a message is more of them since 1970
_UNREAD = {name: reason for name, reason in RECORD.items() if reason} | dict.fromkeys(_PLACE_KEYS, "")
"""Fields of a record of which only the id and the metadata are read. Everything else is counted or refused."""


def read_chats(source: ChatSource, path: Path) -> Iterator[SourceRecord]:
    """Read one chat per record. If a chat is broken, its record has a problem."""
    lists = source.column is None and source.format in _FIRST_LISTS
    records = read_objects(path, source.records, chats=lists)
    if source.requests is not None:
        records = join_batch(records, local_path(source.requests))
    yield from convert_chats(records, path, source)


def convert_chats(records: Iterable[SourceRecord], path: Path, settings: ChatSettings) -> Iterator[SourceRecord]:
    """Replace each record's data, a chat in the format of the settings, with the fields of its scenario."""
    read = _READERS[settings.format]
    for record in records:
        yield convert_record(record, partial(_fields, read, record_name(path, record), settings))


def _fields(
    read: Callable[[dict[str, Any], ChatSettings], LoggedChat], name: str, settings: ChatSettings, data: dict[str, Any]
) -> Converted:
    data = {key: value for key, value in without_filled_nulls(data).items() if value is not None}
    labels = labels_of(data, settings)
    chat = read({key: value for key, value in data.items() if key not in labels}, settings)
    if (undesired := next((name for name, desired in labels.items() if not desired), None)) is not None:
        chat = _without_last_reply(chat, undesired)
    fields = {**chat_fields(chat, users=settings.users), **_origin(data, name, settings).fields()}
    return fields, chat.all_ignored


def labels_of(data: Mapping[str, Any], settings: ChatSettings) -> dict[str, bool]:
    """Labels of the last reply, unless the settings name these keys for something else. True if it is desired."""
    own = (settings.column, *settings.names.values())
    given = {name: data[name] for name in _VERDICTS if name in data and name not in own}
    truths = {name: _truth(value, is_switch=name in _LABELS) for name, value in given.items()}
    return {name: desired for name, desired in truths.items() if desired is not None}


def _truth(value: Any, *, is_switch: bool) -> bool | None:
    """A word, or in a switch true, false, 1, 0 or -1. None for every other value, such as the name of a class."""
    text = str(value).strip().lower() if isinstance(value, (str, int)) else ""
    numbers = {"true": True, "1": True, "false": False, "0": False, "-1": False} if is_switch else {}
    return numbers.get(text, _WORDS.get(text.replace(" ", "_").replace("-", "_")))


def _without_last_reply(chat: LoggedChat, label: str) -> LoggedChat:
    """The chat with weight 0 for the agent's last message, which a label says is undesired."""
    last = max((k for k, message in enumerate(chat.messages) if message.role == "assistant"), default=None)
    if last is None:
        return replace(chat, ignored=(*chat.ignored, f"record.{label}: the chat has no reply that it could belong to"))
    messages = (*chat.messages[:last], replace(chat.messages[last], weight=0), *chat.messages[last + 1 :])
    reason = f"record.{label}: a reply that is labelled as undesired is not a reference"
    return replace(chat, messages=messages, ignored=(*chat.ignored, reason))


def _messages_chat(data: dict[str, Any], settings: ChatSettings) -> LoggedChat:
    ignored: list[str] = []
    program = program_of(data) if settings.column is None else None
    if program is not None:
        data, ignored = program.read(data)
    data = rewrite_record(data)
    if settings.column is None and program is None:
        data, ignored = with_request(data, settings)
    list_key = _list_key(data, settings)
    if list_key is None:
        chat = _logged_chat(data, settings)
        return replace(chat, ignored=(*ignored, *chat.ignored))
    data, messages = without(data, list_key), _parsed(value_at(data, list_key), list_key)
    if isinstance(messages, Mapping) and isinstance(messages.get("messages"), list):
        data, messages = {**without(messages, "messages"), **data}, messages["messages"]
    _check_count(messages)
    _check_order(messages, settings)
    if (name := column_of_chats(messages)) is not None:
        raise ValueError(
            f"several chats in one list: {name} has several values. Read its messages as rows: kind: json, records: "
            f"{list_key}, messages: {{group_by: {name}, speaker: …, text: …}}"
        )
    messages, has_others = shown_branch(messages)
    ignored = [*ignored, *([OTHER_BRANCHES] if has_others else [])]
    messages = openai_messages(messages, settings)
    tools = _named(data, "tools", settings)
    functions = data.get("functions")
    ignored += left_out(_but(_UNREAD, *settings.names.values(), "tools", "functions", "system"), data, "record", "")
    system = _system(data, settings)
    if not system and program is None:
        _refuse_unread_system(data, messages, settings)
    declared = tools if tools is not None else functions
    if declared is None:
        declared = tools_in_prompt(system[0].content if system else messages)
    return LoggedChat(
        messages=(*system, *parse_messages(with_written_calls(messages, declared))),
        tools=parse_tools(declared, ignored),
        ends_with_expected_call=program is None or program.has_demonstrations,
        ignored=tuple(ignored),
    )


def _refuse_unread_system(data: Mapping[str, Any], messages: Any, settings: ChatSettings) -> None:
    """Raise `ValueError` if an object next to the messages has the only system prompt, because it may be the chat's."""
    given = messages if isinstance(messages, list) else []
    if any(isinstance(item, Mapping) and item.get("role") in ("system", "developer") for item in given):
        return
    for name, value in data.items():
        if name == "metadata" or not isinstance(value, Mapping):
            continue
        if (key := next((key for key in value if is_system_key(key) and isinstance(value[key], str)), None)) is None:
            continue
        if value[key].strip():
            place = f"{excerpt(name, 80)}.{key}"
            raise ValueError(
                f"a system prompt at {place} is not read. If the agent had it, name it in the source's names: "
                f"{{system: {place}}}. Otherwise leave it out of the file"
            )


def _list_key(data: dict[str, Any], settings: ChatSettings) -> str | None:
    """Key of the list of messages. None for a logged request or a batch. Raises `ValueError` if it is neither."""
    if settings.column is not None:
        if value_at(data, settings.column) is None:
            raise ValueError(f"no {settings.column}: the record has {', '.join(data) or 'no field'}")
        return settings.column
    if isinstance(data.get("request"), dict) or isinstance(data.get("body"), dict):
        return None
    names = (*_FIRST_LISTS[settings.format], *LISTS)
    if (key := next((name for name in names if name in data), None)) is not None:
        return key
    response = data.get("response")
    if "custom_id" in data and isinstance(response if response is not None else data.get("result"), dict):
        raise ValueError("output of a batch: it has only the replies. Name the batch's input file in requests")
    left_out(RECORD, data, "record", "")
    raise ValueError(f"no {names[0]}: the record has {', '.join(data) or 'no field'}. Name another key in column")


def _logged_chat(data: dict[str, Any], settings: ChatSettings) -> LoggedChat:
    """Chat of a logged request, or of a line of a batch, with its reply if it has one."""
    ignored = [*left_out(_but(RECORD, *_PLACE_KEYS), data, "record", "")]
    request = rewrite_record(data["request"] if isinstance(data.get("request"), dict) else data["body"])
    ignored += left_out(_but(REQUEST, "system"), request, "request", "")
    response = data.get("response")
    if isinstance(response, dict) and isinstance(response.get("body"), dict):
        response = response["body"]
    replies = (
        [] if response is None and {"body", "custom_id"} & {*data} else [reply_of(rewrite_reply(response), ignored)]
    )
    messages = openai_messages(with_reply(request.get("messages"), replies), settings)
    _check_count(messages)
    parsed = (*_system(request, settings), *parse_messages(messages))
    if replies and parsed[-1].tool_calls:
        ignored.append("choice.message: a call that the log ends with, as it does not show that it is right")
        parsed = parsed[:-1]
    tools = request.get("tools") if request.get("tools") is not None else request.get("functions")
    return LoggedChat(messages=parsed, tools=parse_tools(tools, ignored), ignored=tuple(ignored))


def _alpaca_chat(data: dict[str, Any], settings: ChatSettings) -> LoggedChat:
    keys = {name: settings.names.get(name, name) for name in ("instruction", "input", "output", "history", "system")}
    if keys["instruction"] not in data:
        raise ValueError(
            f"no {keys['instruction']}: the record has {', '.join(data) or 'no field'}. Name its key in the source's "
            "names"
        )
    parts = [_text(data, keys[name]) for name in ("instruction", "input")]
    question, answer = "\n\n".join(part for part in parts if part.strip()), _text(data, keys["output"])
    refuse_transcript(question, keys["instruction"])
    turns = [*_history(data.get(keys["history"]), keys["history"]), (question, answer)]
    messages = [
        LoggedMessage(role="user" if number % 2 == 0 else "assistant", content=text)
        for number, text in enumerate(text for turn in turns for text in turn)
    ]
    table = {**dict.fromkeys((*keys.values(), *_PLACE_KEYS), ""), "text": "the prompt once more, as it was rendered"}
    ignored = left_out(table, data, "record", "")
    return LoggedChat(messages=(*_system(data, settings), *messages), ignored=ignored)


def _history(value: Any, key: str) -> list[tuple[str, str]]:
    """Earlier turns: pairs of a question and an answer."""
    value = _parsed(value, key)
    if value in (None, []):
        return []
    pairs = value if isinstance(value, list) else [value]
    if len(pairs) > MAX_MESSAGES:
        raise ValueError(f"over-long chat: {len(pairs)} turns, at most {MAX_MESSAGES}")
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise ValueError(f"{key} is not a list of pairs of a question and an answer")
    return [(pair[0], pair[1]) for pair in pairs]


def _prompt_chat(data: dict[str, Any], settings: ChatSettings) -> LoggedChat:
    ignored: list[str] = []
    prompt_key, completion_key = (settings.names.get(name, name) for name in ("prompt", "completion"))
    if prompt_key not in data:
        raise ValueError(
            f"no {prompt_key}: the record has {', '.join(data) or 'no field'}. Name its key in the source's names"
        )
    prompt, completion = (_written_messages(data.get(key)) for key in (prompt_key, completion_key))
    if isinstance(prompt, str):
        refuse_transcript(prompt, prompt_key)
    turns = [
        *(prompt if isinstance(prompt, list) else [{"role": "user", "content": _text(data, prompt_key)}]),
        *_completion(completion, data, completion_key),
    ]
    _check_count(turns)
    table = _but(_UNREAD, prompt_key, completion_key, *settings.names.values(), "tools", "system")
    ignored += left_out(table, data, "record", "")
    declared = _named(data, "tools", settings)
    messages = with_written_calls(openai_messages(turns, settings), declared)
    tools = parse_tools(declared, ignored)
    parsed = (*_system(data, settings), *parse_messages(messages))
    return LoggedChat(messages=parsed, tools=tools, ends_with_expected_call=True, ignored=tuple(ignored))


def _exchange_chat(data: dict[str, Any], settings: ChatSettings) -> LoggedChat:
    exchange = read_exchange(data, settings.names)
    own = {name: key for name, key in settings.names.items() if name in ("role", "content", "tool_calls")}
    chat = _messages_chat(exchange.record, ChatColumns(names=own, tags=settings.tags))
    others = {key: value for key, value in data.items() if key not in exchange.read}
    ignored = (*exchange.ignored, *left_out(_but(_UNREAD, *settings.names.values()), others, "record", ""))
    return replace(chat, references=exchange.references, ignored=(*chat.ignored, *ignored))


def _written_messages(value: Any) -> Any:
    """Messages that a text holds as JSON. Any other text stays unchanged, also if it is other JSON."""
    parsed = try_call(lambda: _parsed(value, "prompt"))
    is_list = isinstance(parsed, list) and bool(parsed) and all(isinstance(item, dict) for item in parsed)
    return parsed if is_list or not isinstance(value, str) else value


def _completion(value: Any, data: dict[str, Any], key: str) -> list[Any]:
    if isinstance(value, list):
        return value
    if isinstance(value, Mapping):
        return [value]
    return [{"role": "assistant", "content": _text(data, key)}] if key in data else []


_READERS: dict[ChatFormatName, Callable[[dict[str, Any], ChatSettings], LoggedChat]] = {
    "openai_messages": _messages_chat,
    "sharegpt": _messages_chat,
    "alpaca": _alpaca_chat,
    "prompt_completion": _prompt_chat,
    "input_output": _exchange_chat,
}


def _named(data: Mapping[str, Any], name: str, settings: ChatSettings) -> Any:
    return value_at(data, settings.names.get(name, name))


def _system(data: Mapping[str, Any], settings: ChatSettings) -> tuple[LoggedMessage, ...]:
    """The system prompt from a field of its own, outside of the messages."""
    text = _named(data, "system", settings)
    if text is not None and not isinstance(text, str):
        raise ValueError(f"system is not a text: {type(text).__name__}")
    return (LoggedMessage(role="system", content=text),) if text else ()


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key, "")
    if not isinstance(value, str):
        raise ValueError(f"{key} is not a text: {type(value).__name__}")
    return value


def _parsed(value: Any, key: str) -> Any:
    """Value of a cell. If it is a text with a JSON list or object, that is read."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    return cell_value(value, f"{key} is")


def _check_count(messages: Any) -> None:
    if isinstance(messages, list) and len(messages) > MAX_MESSAGES:
        raise ValueError(f"over-long chat: {len(messages)} messages, at most {MAX_MESSAGES}")


def _check_order(messages: Any, settings: ChatSettings) -> None:
    """Raise `ValueError` if each message is older than the one before it, as APIs list the newest first.

    Two messages do not show it if the user begins, because clocks differ and questions are edited. Small numbers are
    durations if the user begins. In any other order, it is raised if a message of the agent is older than the agent's
    message before it, because the agent's messages are not edited.
    """
    if not isinstance(messages, list) or len(messages) < 2 or not all(isinstance(item, dict) for item in messages):
        return

    def speaker_of(message: Mapping[str, Any]) -> str | None:
        name = value_at(message, settings.names.get("role", "role")) or message.get("from")
        return settings.tags.get(str(name)) or SPEAKERS.get(speaker_name(name))

    speaker = speaker_of(messages[0])
    for name in filter(is_time_name, messages[0]):
        if not all(name in item for item in messages):
            continue
        times = [try_call(partial(instant, item[name])) for item in messages]
        if any(time_of_day(item[name]) is not None for item in messages):  # a chat may go on after midnight
            continue
        if not all(isinstance(time, float) for time in times):
            continue
        falls = times == sorted({*times}, reverse=True)  # type: ignore[type-var]
        if falls and (speaker == "assistant" or (len(times) > 2 and times[-1] > _LONGEST_DURATION)):  # type: ignore[operator]
            raise ValueError(f"the newest message comes first, by {name}. Sort them by it, or read them as rows")
        replies = [time for time, item in zip(times, messages, strict=True) if speaker_of(item) == "assistant"]
        falls = any(after < before - _CLOCKS_S for before, after in pairwise(replies))  # type: ignore[operator]
        if falls and min(replies) > _LONGEST_DURATION:  # type: ignore[type-var, operator]
            raise ValueError(f"the agent's messages are not in the order of {name}. Sort them, or read them as rows")


def _but(table: Mapping[str, str], *read: str) -> dict[str, str]:
    """A table of fields in which these fields are read as well."""
    return {**table, **dict.fromkeys(read, "")}


def _origin(data: Mapping[str, Any], name: str, settings: ChatSettings) -> ChatOrigin:
    """Origin of a record with an optional id and `metadata`."""
    names = (settings.names.get("id", "id"), "custom_id")
    given = next((data[key] for key in names if data.get(key) not in (None, "")), None)
    request = data.get("request") if isinstance(data.get("request"), dict) else {}
    metadata = data.get("metadata", request.get("metadata") if request else None)
    if given is not None and not isinstance(given, (str, int)):
        raise ValueError(f"id is not a text: {type(given).__name__}")
    metadata = _parsed(metadata, "metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise ValueError(f"metadata is not an object: {type(metadata).__name__}")
    return ChatOrigin(id=name if given is None else str(given), source=settings.format, metadata=metadata or {})
