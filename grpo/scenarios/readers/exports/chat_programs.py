"""Exports of chat programs, each with its reader: records become messages in a format that `openai_messages` knows.

    ChatGPT, OpenAssistant     trees of messages, see `message_tree`
    LM Studio                  messages with versions, see `lm_studio`
    SillyTavern                lines with `mes` and `is_user`, see `silly_tavern`
    Codex                      lines of events, see `codex`
    Gemini CLI                 messages with calls and their results, see `gemini_cli`
    Open WebUI, LibreChat, …   see `chat_exports`
    Big-AGI                    messages of fragments, see `big_agi`
    LobeChat, Cherry Studio    documents with all chats, see `lobe_chat` and `cherry_studio`
    Agnai, RisuAI              see `role_play`
    goose, opencode            see `coding_agents`
    BFCL                       questions of a benchmark, see `bfcl`
    Glaive's data set          one text with the names of the speakers, see `glaive`

A record belongs to a program if it has the program's own keys. Its keys are not guessed then, and no other reader of
tables or lists is tried, because it would read something else as the chat. A card of a character and a story have no
speakers, and are refused with what to do instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo.data_errors import excerpt
from grpo.scenarios.readers.exports.bfcl import is_bfcl, is_bfcl_answer, read_bfcl, refuse_bfcl_answer
from grpo.scenarios.readers.exports.big_agi import is_big_agi, read_big_agi
from grpo.scenarios.readers.exports.chat_exports import (
    is_ai_studio,
    is_character_ai,
    is_chatbox,
    is_grok,
    is_libre_chat,
    is_llama_cpp,
    is_next_chat,
    is_open_webui,
    is_text_generation,
    read_ai_studio,
    read_character_ai,
    read_chatbox,
    read_grok,
    read_libre_chat,
    read_llama_cpp,
    read_next_chat,
    read_open_webui,
    read_text_generation,
)
from grpo.scenarios.readers.exports.cherry_studio import cherry_chats, is_cherry_studio, read_cherry_studio
from grpo.scenarios.readers.exports.codex import is_codex, read_codex
from grpo.scenarios.readers.exports.coding_agents import (
    is_copilot_chat,
    is_goose,
    is_opencode,
    is_zed,
    read_goose,
    read_opencode,
    refuse_copilot_chat,
    refuse_zed,
)
from grpo.scenarios.readers.exports.gemini_cli import is_gemini_cli, read_gemini_cli
from grpo.scenarios.readers.exports.glaive import is_glaive, read_glaive
from grpo.scenarios.readers.exports.lm_studio import is_lm_studio, read_lm_studio
from grpo.scenarios.readers.exports.lobe_chat import is_lobe_chat, lobe_chats, read_lobe_chat
from grpo.scenarios.readers.exports.message_links import OTHER_BRANCHES as OTHER_REPLIES
from grpo.scenarios.readers.exports.message_tree import (
    END,
    OTHER_BRANCHES,
    ROOT,
    TREE,
    best_branch_of,
    branch_of,
    is_chat_tree,
    is_reply_tree,
)
from grpo.scenarios.readers.exports.role_play import is_agnai, is_risu, read_agnai, read_risu, risu_chats
from grpo.scenarios.readers.exports.silly_tavern import is_silly_tavern, read_silly_tavern

_SESSION = "session:"
Read = tuple[dict[str, Any], list[str]]
"""A record with messages, and what was left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A chat program: how its records are known, and their reader."""

    name: str
    is_record: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Mapping[str, Any]], Read]
    """Raises `ValueError` if a chat cannot be read."""
    has_demonstrations: bool = False
    """True for a data set to learn from, in which the last message may be the call to make."""


def program_of(data: Mapping[str, Any]) -> Program | None:
    """The program that a record is from. None for every other record."""
    return next((program for program in PROGRAMS if program.is_record(data)), None)


def are_of_programs(records: Sequence[Mapping[str, Any]]) -> bool:
    """True if most of these records are chats of programs."""
    return 2 * sum(program_of(record) is not None for record in records) > len(records)


def chats_in(document: Mapping[str, Any]) -> list[Any]:
    """Chats of a document with all chats of a program. Empty for every other document.

    {"session:c1": {"messages": […]}, …} is a backup of Chatbox, and its keys say which values are sessions.
    """
    sessions = [value for name, value in document.items() if name.startswith(_SESSION) and isinstance(value, dict)]
    return sessions or lobe_chats(document) or cherry_chats(document) or risu_chats(document)


def _read_tree(data: Mapping[str, Any]) -> Read:
    given = {key: value for key, value in data.items() if key not in (TREE, END)}
    messages = branch_of(data)
    parents = [node.get("parent") for node in data[TREE].values() if isinstance(node, Mapping)]
    parents = [excerpt(parent) for parent in parents if parent is not None]
    return {**given, "messages": messages}, [] if len({*parents}) == len(parents) else [OTHER_REPLIES]


def _read_reply_tree(data: Mapping[str, Any]) -> Read:
    messages, has_others = best_branch_of(data)
    record = {**{key: value for key, value in data.items() if key != ROOT}, "messages": messages}
    return record, [OTHER_BRANCHES] if has_others else []


def _is_card(data: Mapping[str, Any]) -> bool:
    inner = data.get("data") if isinstance(data.get("data"), Mapping) else data
    return isinstance(inner, Mapping) and {"first_mes", "mes_example"} <= {*inner}


def _refuse_card(data: Mapping[str, Any]) -> Read:
    raise ValueError(
        "a card describes a character and has no chat. Export the chats with it instead, in SillyTavern as JSONL"
    )


def _is_story(data: Mapping[str, Any]) -> bool:
    return "gamestarted" in data and isinstance(data.get("actions"), list)


def _refuse_story(data: Mapping[str, Any]) -> Read:
    raise ValueError(
        "a story of KoboldAI does not say who wrote which part. Write its turns as a list of messages with roles"
    )


def _is_activity(data: Mapping[str, Any]) -> bool:
    return {"header", "title", "time", "safeHtmlItem"} <= {*data}


def _refuse_activity(data: Mapping[str, Any]) -> Read:
    raise ValueError(
        "an activity of Google's Takeout has one prompt with a reply in HTML, and does not say to which chat it "
        "belongs. Write the messages of each chat as a list with roles"
    )


PROGRAMS = (
    Program(name="ChatGPT", is_record=is_chat_tree, read=_read_tree),
    Program(name="OpenAssistant", is_record=is_reply_tree, read=_read_reply_tree),
    Program(name="LM Studio", is_record=is_lm_studio, read=read_lm_studio),
    Program(name="SillyTavern", is_record=is_silly_tavern, read=read_silly_tavern),
    Program(name="Codex", is_record=is_codex, read=read_codex),
    Program(name="Gemini CLI", is_record=is_gemini_cli, read=read_gemini_cli),
    Program(name="Big-AGI", is_record=is_big_agi, read=read_big_agi),
    Program(name="LobeChat", is_record=is_lobe_chat, read=read_lobe_chat),
    Program(name="Cherry Studio", is_record=is_cherry_studio, read=read_cherry_studio),
    Program(name="Agnai", is_record=is_agnai, read=read_agnai),
    Program(name="RisuAI", is_record=is_risu, read=read_risu),
    Program(name="goose", is_record=is_goose, read=read_goose),
    Program(name="opencode", is_record=is_opencode, read=read_opencode),
    Program(name="BFCL", is_record=is_bfcl, read=read_bfcl),
    Program(name="Open WebUI", is_record=is_open_webui, read=read_open_webui),
    Program(name="LibreChat", is_record=is_libre_chat, read=read_libre_chat),
    Program(name="llama.cpp", is_record=is_llama_cpp, read=read_llama_cpp),
    Program(name="text-generation-webui", is_record=is_text_generation, read=read_text_generation),
    Program(name="Chatbox", is_record=is_chatbox, read=read_chatbox),
    Program(name="NextChat", is_record=is_next_chat, read=read_next_chat),
    Program(name="Grok", is_record=is_grok, read=read_grok),
    Program(name="Google AI Studio", is_record=is_ai_studio, read=read_ai_studio),
    Program(name="Character.AI", is_record=is_character_ai, read=read_character_ai),
    Program(name="Glaive", is_record=is_glaive, read=read_glaive, has_demonstrations=True),
    Program(name="character cards", is_record=_is_card, read=_refuse_card),
    Program(name="KoboldAI", is_record=_is_story, read=_refuse_story),
    Program(name="BFCL, answers", is_record=is_bfcl_answer, read=refuse_bfcl_answer),
    Program(name="Google Takeout", is_record=_is_activity, read=_refuse_activity),
    Program(name="Copilot Chat", is_record=is_copilot_chat, read=refuse_copilot_chat),
    Program(name="Zed", is_record=is_zed, read=refuse_zed),
)
