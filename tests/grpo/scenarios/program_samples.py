"""A file of each chat program that `openai_messages` reads, and the words of docs/logs.md on how each is known.

In each file a user asks "Where is order 7?", and the agent replies "It is lost.". Where the program stores other
replies to the same message, the file has one that is not shown. `python -m tests.docs.tables` writes the page's table
from PROGRAM_FILES.
"""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from typing import Any

from tests.grpo.scenarios.chat_samples import ASKED, DONE

OTHER = "No idea."


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFile:
    """A file of a program. A list of `lines` is written as JSON lines."""

    name: str
    file: str
    """Name of the file, as the program writes it."""
    known_by: str
    reads: str
    """What of the file is read, and what is left out."""
    content: Any
    lines: bool = False
    records: str | None = None
    """Place of the chats in the document, which the guess finds."""
    context: str = ""
    has_call: bool = False
    """The agent called look_up(order="7") and got "lost"."""

    def text(self) -> str:
        """Content of the file."""
        return "\n".join(map(json.dumps, self.content)) if self.lines else json.dumps(self.content)


def text_part(text: str) -> dict[str, Any]:
    """A text as LM Studio stores it."""
    return {"type": "text", "text": text, "fromDraftModel": False, "tokensCount": 3, "isStructural": False}


def block(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A step of LM Studio's agent."""
    return {"type": "contentBlock", "stepIdentifier": "1732-0.5", "content": [*parts], **fields}


def lm_studio(*steps: dict[str, Any], selected: int = 1) -> dict[str, Any]:
    """A conversation of LM Studio, whose question was edited."""
    asked = [{"type": "singleStep", "role": "user", "content": [text_part(text)]} for text in (OTHER, ASKED)]
    replied = {"type": "multiStep", "role": "assistant", "senderInfo": {"senderName": "qwen"}, "steps": [*steps]}
    return {
        "name": "Orders",
        "pinned": False,
        "createdAt": 1732000000000,
        "tokenCount": 31,
        "systemPrompt": "An older prompt.",
        "messages": [
            {"versions": asked, "currentlySelected": selected},
            {"versions": [replied], "currentlySelected": 0},
        ],
        "usePerChatPredictionConfig": True,
        "perChatPredictionConfig": {"fields": [{"key": "llm.prediction.systemPrompt", "value": "Be kind."}]},
        "clientInput": "a draft",
        "lastUsedModel": {"identifier": "qwen"},
        "notes": [],
    }


LM_STUDIO = lm_studio(
    block(text_part("7?"), style={"type": "thinking", "ended": True}),
    block({"type": "toolCallRequest", "callId": 3, "name": "look_up", "parameters": {"order": "7"}}),
    {"type": "toolStatus", "callId": 3, "statusState": {"status": {"type": "toolCallSucceeded"}}},
    block({"type": "toolCallResult", "callId": 3, "content": json.dumps([{"type": "text", "text": "lost"}])}),
    block(text_part(DONE), genInfo={"stats": {"stopReason": "eosFound"}}),
    {"type": "debugInfoBlock", "debugInfo": "named"},
)
HEADER = {"user_name": "Ann", "character_name": "Desk", "create_date": "2026-11-20 @09h00m", "chat_metadata": {}}
SWIPED = {
    "name": "Desk", "is_user": False, "is_system": False, "send_date": "November 20, 2026 9:01am", "mes": DONE,
    "swipes": [OTHER, DONE], "swipe_id": 1, "extra": {"api": "openai", "model": "m", "reasoning": "7?"},
}  # fmt: skip
INVOKED = {
    "name": "System", "is_user": False, "is_system": True, "mes": "Tool calls: look_up",
    "extra": {
        "isSmallSys": True,
        "tool_invocations": [
            {"id": "c1", "name": "look_up", "displayName": "Look up", "parameters": '{"order": "7"}', "result": "lost"}
        ],
    },
}  # fmt: skip
SILLY_TAVERN: list[dict[str, Any]] = [
    HEADER,
    {"name": "Desk", "is_user": False, "send_date": "November 20, 2026 9:00am", "mes": "Welcome.", "extra": {}},
    {"name": "Ann", "is_user": True, "send_date": "November 20, 2026 9:00am", "mes": ASKED, "extra": {}},
    INVOKED,
    SWIPED,
]
CODEX_ITEMS: list[dict[str, Any]] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": ASKED}]},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "7?"}], "encrypted_content": "gA"},
    {"type": "function_call", "name": "look_up", "arguments": '{"order": "7"}', "call_id": "c1"},
    {"type": "function_call_output", "call_id": "c1", "output": "lost"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": DONE}]},
]


def codex_lines(*items: dict[str, Any], **about: Any) -> list[dict[str, Any]]:
    """A session of Codex with these items."""
    time = "2025-11-20T10:00:00.000Z"
    return [
        {"timestamp": time, "type": "session_meta", "payload": {"id": "0199", "cwd": "/shop", **about}},
        {"timestamp": time, "type": "event_msg", "payload": {"type": "user_message", "message": ASKED}},
        {"timestamp": time, "type": "turn_context", "payload": {"cwd": "/shop", "model": "gpt-5.1-codex"}},
        *({"timestamp": time, "type": "response_item", "payload": item} for item in items),
        {"timestamp": time, "type": "event_msg", "payload": {"type": "token_count", "info": None}},
    ]


GEMINI_CLI: list[dict[str, Any]] = [
    {"id": "1", "timestamp": "2025-11-20T10:00:00Z", "type": "info", "content": "Update available: 0.19.0"},
    {"id": "2", "timestamp": "2025-11-20T10:00:00Z", "type": "user", "content": [{"text": ASKED}]},
    {
        "id": "3", "type": "gemini", "content": "", "thoughts": [{"subject": "Order", "description": "7?"}],
        "toolCalls": [
            {
                "id": "c1", "name": "look_up", "args": {"order": "7"}, "status": "success",
                "result": [{"functionResponse": {"id": "c1", "name": "look_up", "response": {"output": "lost"}}}],
            }
        ],
    },
    {"id": "4", "type": "gemini", "content": DONE, "thoughts": [], "tokens": {"input": 9}, "model": "gemini-2.5-pro"},
]  # fmt: skip
GEMINI_CLI_LINES: list[dict[str, Any]] = [
    {"sessionId": "0199", "projectHash": "a1", "startTime": "2026-04-20T10:00:00Z", "kind": "main"},
    *GEMINI_CLI[:2],
    {"$set": {"lastUpdated": "2026-04-20T10:00:01Z"}},
    {key: value for key, value in GEMINI_CLI[2].items() if key != "toolCalls"},
    GEMINI_CLI[2],
    {"id": "5", "type": "user", "content": [{"text": "Which order?"}]},
    {"id": "6", "type": "gemini", "content": OTHER},
    {"$rewindTo": "5"},
    GEMINI_CLI[3],
    {"$set": {"messages": [{**GEMINI_CLI[1], "content": "shortened"}]}},
]


def big_agi_text(text: str) -> dict[str, Any]:
    """A fragment of Big-AGI with a text."""
    return {"ft": "content", "fId": "f", "part": {"pt": "text", "text": text}}


BIG_AGI: list[dict[str, Any]] = [
    {"id": "1", "role": "system", "fragments": [big_agi_text("Be kind.")], "tokenCount": 3, "created": 1},
    {"id": "2", "role": "user", "fragments": [big_agi_text(ASKED)], "tokenCount": 3, "created": 2},
    {"id": "3", "role": "assistant", "userFlags": ["aix.skip"], "fragments": [big_agi_text("a note")], "created": 3},
    {"id": "4", "role": "assistant", "generator": {"mgt": "aix", "name": "m"}, "created": 4, "fragments": [
        {"ft": "void", "fId": "a", "part": {"pt": "ma", "aType": "reasoning", "aText": "7?"}},
        {"ft": "content", "fId": "b", "part": {"pt": "tool_invocation", "id": "c1", "invocation": {
            "type": "function_call", "name": "look_up", "args": '{"order": "7"}'}}},
        {"ft": "content", "fId": "c", "part": {"pt": "tool_response", "id": "c1", "error": False, "response": {
            "type": "function_call", "name": "look_up", "result": "lost"}, "environment": "client"}},
        big_agi_text(DONE)]},
]  # fmt: skip
LOBE_CHAT: list[dict[str, Any]] = [
    {"id": "m1", "role": "user", "content": ASKED},
    {"id": "m2", "role": "assistant", "content": "", "reasoning": {"content": "7?"}, "parentId": "m1", "tools": [
        {"id": "c1", "identifier": "shop", "apiName": "look_up", "arguments": '{"order": "7"}', "type": "default"}]},
    {"id": "m3", "role": "tool", "tool_call_id": "c1", "content": "lost", "parentId": "m2",
     "plugin": {"apiName": "look_up", "identifier": "shop", "arguments": '{"order": "7"}'}},
    {"id": "m4", "role": "assistant", "content": DONE, "parentId": "m2"},
]  # fmt: skip


def lobe_chat(*messages: dict[str, Any]) -> dict[str, Any]:
    """An export of LobeChat with these messages of one session."""
    stamped = [{"sessionId": "s", "createdAt": number, **message} for number, message in enumerate(messages)]
    sessions = [{"id": "s", "type": "agent", "config": {"systemRole": "Be kind.", "model": "m"}}]
    return {"exportType": "singleSession", "state": {"messages": stamped, "sessions": sessions}, "version": 7}


def cherry_studio(*messages: dict[str, Any], blocks: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    """A backup of Cherry Studio with these messages of one topic."""
    given = [{"assistantId": "d", "topicId": "t", "status": "success", **message} for message in messages]
    store = {"assistants": json.dumps({"assistants": [{"id": "d", "name": "Desk", "prompt": "Be kind."}]})}
    return {
        "time": 1732000000000, "version": 5, "localStorage": {"persist:cherry-studio": json.dumps(store)},
        "indexedDB": {"topics": [{"id": "t", "messages": given}], "message_blocks": [*blocks], "settings": []},
    }  # fmt: skip


def cherry_block(name: str, kind: str, content: str, **fields: Any) -> dict[str, Any]:
    """A block of a message of Cherry Studio."""
    return {"id": name, "messageId": "m", "type": kind, "status": "success", "content": content, **fields}


CHERRY_STUDIO = cherry_studio(
    {"id": "1", "role": "user", "blocks": ["a"]},
    {"id": "2", "role": "assistant", "askId": "1", "blocks": ["b"]},
    {"id": "3", "role": "assistant", "askId": "1", "blocks": ["c", "d", "e"], "useful": True},
    blocks=(
        cherry_block("a", "main_text", ASKED), cherry_block("b", "main_text", OTHER),
        cherry_block("c", "thinking", "7?"),
        cherry_block("d", "tool", "lost", toolId="look_up", toolName="look_up", arguments={"order": "7"}),
        cherry_block("e", "main_text", DONE),
    ),
)  # fmt: skip
AGNAI: list[dict[str, Any]] = [
    {"_id": "1", "characterId": "imported", "handle": "Desk", "name": "Desk", "msg": "Welcome."},
    {"_id": "2", "parent": "1", "userId": "u1", "handle": "Ann", "name": "Ann", "msg": ASKED},
    {"_id": "3", "parent": "2", "userId": "u1", "handle": "Ann", "name": "Ann", "msg": "(a note)", "ooc": True},
    {"_id": "4", "parent": "3", "characterId": "imported", "handle": "Desk", "name": "Desk", "msg": DONE},
]
RISU: list[dict[str, Any]] = [
    {"role": "char", "data": "Welcome.", "time": 1},
    {"role": "user", "data": ASKED, "time": 2},
    {"role": "char", "data": "a note", "time": 3, "disabled": True},
    {"role": "char", "data": DONE, "time": 4, "generationInfo": {"model": "m"}},
]
GOOSE: list[dict[str, Any]] = [
    {"role": "user", "created": 1, "content": [{"type": "text", "text": ASKED}]},
    {"role": "assistant", "created": 2, "content": [
        {"type": "thinking", "thinking": "7?", "signature": "x"},
        {"type": "toolRequest", "id": "c1", "toolCall": {
            "status": "success", "value": {"name": "look_up", "arguments": {"order": "7"}}}}]},
    {"role": "user", "created": 3, "content": [
        {"type": "toolResponse", "id": "c1", "toolResult": {
            "status": "success", "value": [{"type": "text", "text": "lost"}]}}]},
    {"role": "assistant", "created": 4, "content": [{"type": "text", "text": DONE}]},
]  # fmt: skip
OPENCODE: list[dict[str, Any]] = [
    {"info": {"id": "m1", "role": "user", "sessionID": "s"}, "parts": [{"id": "p", "type": "text", "text": ASKED}]},
    {"info": {"id": "m2", "role": "assistant", "sessionID": "s", "parentID": "m1"}, "parts": [
        {"type": "step-start"}, {"type": "reasoning", "text": "7?"},
        {"type": "tool", "callID": "c1", "tool": "look_up", "state": {
            "status": "completed", "input": {"order": "7"}, "output": "lost", "title": "", "metadata": {}}},
        {"type": "step-finish", "reason": "tool-calls"}]},
    {"info": {"id": "m3", "role": "assistant", "sessionID": "s", "parentID": "m1"}, "parts": [
        {"type": "text", "text": DONE}]},
]  # fmt: skip
_CALLED = (
    '<details type="tool_calls" done="true" id="c1" name="look_up" '
    f'arguments="{html.escape(json.dumps(json.dumps({"order": "7"})))}" '
    f'result="{html.escape(json.dumps("lost"))}">\n<summary>Tool Executed</summary>\n</details>\n'
)
_THOUGHT = '<details type="reasoning" done="true" duration="1">\n<summary>Thought</summary>\n> 7?\n</details>\n'


def _nodes(id_key: str, parent_key: str, **fields: Any) -> list[dict[str, Any]]:
    """A question with two replies. The second one is shown."""
    links = (("u", None, "user", ASKED), ("a", "u", "assistant", OTHER), ("b", "u", "assistant", DONE))
    return [
        {id_key: name, parent_key: parent, "role": role, "content": text, **fields}
        for name, parent, role, text in links
    ]


_WEBUI = {node["id"]: node for node in _nodes("id", "parentId", timestamp=1, models=["m"])}
_WEBUI["b"]["content"] = f"{_THOUGHT}{_CALLED}{DONE}"
_LIBRE = [
    {"messageId": node["id"], "parentMessageId": node["parent"], "isCreatedByUser": node["role"] == "user",
     "text": node["content"], "sender": "x", "conversationId": "c"}
    for node in _nodes("id", "parent")
]  # fmt: skip
_LLAMA = [{"id": "r", "parent": None, "role": "system", "type": "root", "content": ""}, *_nodes("id", "parent")]
PROGRAM_FILES = (
    ProgramFile(
        name="LM Studio",
        file="1732000000000.conversation.json",
        known_by="messages with `versions` and `currentlySelected`",
        reads="the selected version of each message, thoughts as reasoning, calls, results and the system prompt",
        content=LM_STUDIO,
        context="Be kind.",
        has_call=True,
    ),
    ProgramFile(
        name="SillyTavern",
        file="Desk - 2026-11-20.jsonl",
        known_by="a first line with `user_name` or `chat_metadata`, then lines with `is_user` and `mes`",
        reads="the shown swipe, `reasoning` and `tool_invocations`; messages hidden from the model are left out",
        content=SILLY_TAVERN,
        lines=True,
        context="You opened the conversation: Welcome.",
        has_call=True,
    ),
    ProgramFile(
        name="Codex",
        file="rollout-2025-11-20T10-00-00-0199.jsonl",
        known_by="a first line of type `session_meta`, then lines with `type` and `payload`",
        reads="the items of type `response_item`, up to the first summary of earlier turns, and `base_instructions`",
        content=codex_lines(*CODEX_ITEMS, base_instructions={"text": "Be kind."}),
        lines=True,
        context="Be kind.",
        has_call=True,
    ),
    ProgramFile(
        name="Codex, first versions",
        file="rollout-2025-05-20-0199.jsonl",
        known_by="a first line with `id`, `timestamp` and `instructions`, then items",
        reads="the items. `instructions` is left out, because a message repeats it",
        content=[
            {"id": "0199", "timestamp": "2025-05-20T10:00:00.000Z", "instructions": None},
            {"record_type": "state"},
            *CODEX_ITEMS,
        ],
        lines=True,
        has_call=True,
    ),
    ProgramFile(
        name="Gemini CLI",
        file="session-2025-11-20T10-00-0199.json",
        known_by="`sessionId` and messages of the types `user` and `gemini`",
        reads="texts, thoughts as reasoning, and `toolCalls` with their results; messages for the user are left out",
        content={"sessionId": "0199", "projectHash": "a1", "startTime": "2025-11-20T10:00:00Z", "messages": GEMINI_CLI},
        has_call=True,
    ),
    ProgramFile(
        name="Gemini CLI, files of lines",
        file="session-2026-04-20T10-00-0199.jsonl",
        known_by="a first line with `sessionId` and `projectHash`, then messages, `$set` and `$rewindTo`",
        reads="the newest version of each message, without turns that the user took back, up to the first summary",
        content=GEMINI_CLI_LINES,
        lines=True,
        has_call=True,
    ),
    ProgramFile(
        name="Big-AGI",
        file="conversation_orders_2026-11-20.agi.json",
        known_by="`systemPurposeId` and messages with `fragments`, or with `text` in older versions",
        reads="texts, reasoning, calls and results; messages that are hidden from the model are left out",
        content={"id": "c", "messages": BIG_AGI, "systemPurposeId": "Generic", "autoTitle": "Orders", "created": 1},
        context="Be kind.",
        has_call=True,
    ),
    ProgramFile(
        name="Big-AGI, backup",
        file="backup_chats_2026-11-20.agi.json",
        known_by="`conversations` of the same form",
        reads="the same",
        content={"conversations": [{"id": "c", "messages": BIG_AGI, "systemPurposeId": "Generic", "created": 1}],
                 "models": {"sources": []}, "folders": {"folders": [], "enableFolders": False}},
        records="conversations",
        context="Be kind.",
        has_call=True,
    ),
    ProgramFile(
        name="LobeChat",
        file="LobeChat-session.json",
        known_by="`exportType` and a `state` with `messages`",
        reads="each topic of each session, calls with their results, and the system prompt of the session",
        content=lobe_chat(*LOBE_CHAT),
        context="Be kind.",
        has_call=True,
    ),
    ProgramFile(
        name="Cherry Studio",
        file="data.json",
        known_by="`indexedDB` with `topics`, and `localStorage`",
        reads="each topic, of several replies the one that is marked as useful, or else the first one, calls with "
              "their results, and the prompt of the assistant. A cleared context begins another chat",
        content=CHERRY_STUDIO,
        context="Be kind.",
        has_call=True,
    ),
    ProgramFile(
        name="Agnai",
        file="chat-0199.json",
        known_by="messages with `msg` and `handle`, `userId` or `characterId`",
        reads="the messages, without those out of character, and the scenario of the chat",
        content={"name": "Exported", "greeting": "Welcome.", "sampleChat": "", "scenario": "Be kind.",
                 "treeLeafId": "4", "messages": AGNAI},
        context="Be kind.\n\nYou opened the conversation: Welcome.",
    ),
    ProgramFile(
        name="RisuAI",
        file="Desk_2026-11-20.json",
        known_by="`type`, which is risuChat or `risuAllChats`",
        reads="the messages that are not disabled, and the note of the chat",
        content={"type": "risuAllChats", "ver": 1, "data": [
            {"message": RISU, "note": "Be kind.", "name": "Orders", "localLore": []}]},
        context="Be kind.\n\nYou opened the conversation: Welcome.",
    ),
    ProgramFile(
        name="goose",
        file="20261120_1.jsonl",
        known_by="a first line with `working_dir`, then messages, or a conversation next to it",
        reads="texts, reasoning, `toolRequest` and `toolResponse`, up to the first summary",
        content=[{"id": "s", "working_dir": "/shop", "description": "Orders", "message_count": 4}, *GOOSE],
        lines=True,
        has_call=True,
    ),
    ProgramFile(
        name="opencode",
        file="session.json",
        known_by="`info`, and messages with `info` and `parts`",
        reads="texts, reasoning and tools with their results, up to the first summary",
        content={"info": {"id": "s", "title": "Orders"}, "messages": OPENCODE},
        has_call=True,
    ),
    ProgramFile(
        name="Open WebUI",
        file="chat-export-1732000000000.json",
        known_by="`chat` with a `history` of `messages` and a `currentId`",
        reads="the branch that is shown, the chat's system prompt, reasoning and calls that are blocks of the text",
        content=[
            {"id": "c", "title": "Orders", "chat": {
                "params": {"system": "Be kind."}, "models": ["m"],
                "history": {"messages": _WEBUI, "currentId": "b"}, "messages": [_WEBUI["u"], _WEBUI["b"]],
            }}
        ],
        context="Be kind.",
        has_call=True,
    ),
    ProgramFile(
        name="LibreChat",
        file="orders.json",
        known_by="messages with `messageId` and `isCreatedByUser`",
        reads="the branch of the newest message, also of a tree; calls with their results",
        content={"conversationId": "c", "title": "Orders", "options": {"model": "m", "promptPrefix": "Be kind."},
                 "branches": True, "recursive": False, "messages": _LIBRE},
        context="Be kind.",
    ),
    ProgramFile(
        name="llama.cpp, page of the server",
        file="conversation.json",
        known_by="`conv` with a `currNode`",
        reads="the branch that is shown",
        content={"conv": {"id": "c", "name": "Orders", "currNode": "b", "lastModified": 1}, "messages": _LLAMA},
    ),
    ProgramFile(
        name="text-generation-webui",
        file="20261120-09-00-00.json",
        known_by="`internal` and `visible`, or `data` and `data_visible`",
        reads="the texts as the model read them",
        content={"internal": [["<|BEGIN-VISIBLE-CHAT|>", "Welcome."], [ASKED, DONE]],
                 "visible": [["", "Welcome."], [ASKED, f"<p>{DONE}</p>"]], "metadata": {}},
        context="You opened the conversation: Welcome.",
    ),
    ProgramFile(
        name="Chatbox",
        file="chatbox-exported-data.json",
        known_by="messages with `contentParts`",
        reads="each session of a backup, calls with their results; earlier threads of a session are left out",
        content={
            "__exported_items": ["conversations"],
            "chat-sessions-list-meta": [{"id": "s", "name": "Orders"}],
            "session:s": {"id": "s", "name": "Orders", "messages": [
                {"id": "1", "role": "system", "contentParts": [{"type": "text", "text": "Be kind."}]},
                {"id": "2", "role": "user", "contentParts": [{"type": "text", "text": ASKED}]},
                {"id": "3", "role": "assistant", "contentParts": [
                    {"type": "reasoning", "text": "7?"},
                    {"type": "tool-call", "state": "result", "toolCallId": "c1", "toolName": "look_up",
                     "args": {"order": "7"}, "result": "lost"},
                    {"type": "text", "text": DONE},
                ]},
            ]},
        },
        context="Be kind.",
        has_call=True,
    ),
    ProgramFile(
        name="Google AI Studio",
        file="orders.json",
        known_by="`chunkedPrompt` with `chunks`",
        reads="the chunks, with thoughts as reasoning, and `systemInstruction`",
        content={"runSettings": {"temperature": 1.0}, "systemInstruction": {"text": "Be kind."}, "chunkedPrompt": {
            "chunks": [{"role": "user", "text": ASKED}, {"role": "model", "text": "7?", "isThought": True},
                       {"role": "model", "text": DONE, "finishReason": "STOP"}]}},
        context="Be kind.",
    ),
    ProgramFile(
        name="Character.AI, as CAI Tools saves it",
        file="desk.json",
        known_by="`msgs` with a `src` that `is_human` or not",
        reads="each chat of the file",
        content={"info": {"name": "Desk"}, "histories": {"histories": [{"msgs": [
            {"src": {"is_human": False, "name": "Desk"}, "text": "Welcome."},
            {"src": {"is_human": True, "name": "Ann"}, "text": ASKED},
            {"src": {"is_human": False, "name": "Desk"}, "text": DONE}]}]}},
        records="histories.histories",
        context="You opened the conversation: Welcome.",
    ),
    ProgramFile(
        name="ChatGPT",
        file="conversations.json",
        known_by="a tree with `mapping` and `current_node`",
        reads="the branch that was shown last, without thoughts. A call that ChatGPT ran itself quarantines the chat",
        content=[{"id": "c", "title": "Orders", "current_node": "b", "mapping": {
            "u": {"parent": None, "message": {"author": {"role": "user"},
                  "content": {"content_type": "text", "parts": [ASKED]}}},
            "a": {"parent": "u", "message": {"author": {"role": "assistant"},
                  "content": {"content_type": "text", "parts": [OTHER]}}},
            "t": {"parent": "u", "message": {"author": {"role": "assistant"},
                  "content": {"content_type": "thoughts", "thoughts": [{"summary": "7", "content": "7?"}]}}},
            "b": {"parent": "t", "message": {"author": {"role": "assistant"}, "recipient": "all",
                  "content": {"content_type": "text", "parts": [DONE]}}},
        }}],
    ),
    ProgramFile(
        name="DeepSeek",
        file="conversations.json",
        known_by="`mapping`, whose messages have `fragments`",
        reads="the branch of the newest message, fragments of thoughts as reasoning",
        content=[{"id": "c", "title": "Orders", "mapping": {
            "root": {"id": "root", "parent": None, "children": ["1"], "message": None},
            "1": {"id": "1", "parent": "root", "children": ["2", "3"], "message": {
                "files": [], "model": "m", "fragments": [{"type": "REQUEST", "content": ASKED}]}},
            "2": {"id": "2", "parent": "1", "children": [], "message": {
                "files": [], "model": "m", "fragments": [{"type": "RESPONSE", "content": OTHER}]}},
            "3": {"id": "3", "parent": "1", "children": [], "message": {"files": [], "model": "m", "fragments": [
                {"type": "THINK", "content": "7?"}, {"type": "RESPONSE", "content": DONE}]}},
        }}],
    ),
    ProgramFile(
        name="Grok",
        file="prod-grok-backend.json",
        known_by="a `conversation` with `responses`",
        reads="the branch of the newest message",
        content={"conversations": [{"conversation": {"id": "c", "title": "Orders"}, "responses": [
            {"response": {"_id": "u", "sender": "human", "message": ASKED}},
            {"response": {"_id": "a", "parent_response_id": "u", "sender": "ASSISTANT", "message": OTHER}},
            {"response": {"_id": "b", "parent_response_id": "u", "sender": "ASSISTANT", "message": DONE}},
        ]}], "projects": [], "tasks": []},
        records="conversations",
    ),
    ProgramFile(
        name="NextChat",
        file="Backup-2026-11-20.json",
        known_by="a `mask` with a `context`",
        reads="the messages of the mask, followed by the messages of the session",
        content={"chat-next-web-store": {"currentSessionIndex": 0, "sessions": [{"id": "s", "topic": "Orders",
            "mask": {"context": [{"role": "system", "content": "Be kind."}]}, "messages": [
                {"id": "1", "role": "user", "content": ASKED, "date": "x"},
                {"id": "2", "role": "assistant", "content": DONE, "date": "x", "streaming": False}]}]}},
        records="chat-next-web-store.sessions",
        context="Be kind.",
    ),
    ProgramFile(
        name="OpenAssistant, trees",
        file="trees.jsonl",
        known_by="`prompt` with `replies`",
        reads="the best replies by their rank",
        content=[{"message_tree_id": "m", "prompt": {"role": "prompter", "text": ASKED, "replies": [
            {"role": "assistant", "text": OTHER, "rank": 1, "replies": []},
            {"role": "assistant", "text": DONE, "rank": 0, "replies": []}]}}],
        lines=True,
    ),
    ProgramFile(
        name="Glaive, function calling",
        file="glaive.json",
        known_by="`chat`, which is a text that begins with USER:, and `system`",
        reads="the turns of the text, calls and results, and the functions of the system text as tools",
        content=[{
            "system": 'SYSTEM: Use these functions if required -\n{"name": "look_up", "description": "Look up.", '
                      '"parameters": {"type": "object", "properties": {"order": {"type": "string"}}}}\n',
            "chat": f"USER: {ASKED}\n\n\nASSISTANT: <functioncall> {{\"name\": \"look_up\", \"arguments\": "
                    f"'{{\"order\": \"7\"}}'}} <|endoftext|>\n\n\nFUNCTION RESPONSE: lost\n\n\nASSISTANT: {DONE} "
                    "<|endoftext|>\n\n\n",
        }],
        has_call=True,
    ),
)  # fmt: skip
"""Programs in the order of the page."""
REFUSED = (
    ("a card of a character", {"spec": "chara_card_v2", "data": {"first_mes": "Hi.", "mes_example": ""}},
     "a card describes a character and has no chat. Export the chats"),
    ("KoboldAI's stories", {"gamestarted": True, "prompt": f"\nYou: {ASKED}", "actions": [f"\nDesk: {DONE}"]},
     "a story of KoboldAI does not say who wrote which part. Write its turns as a list"),
    ("Google Takeout", {"header": "Gemini Apps", "title": f"Prompted {ASKED}", "time": "2026-11-20T09:00:00Z",
                        "safeHtmlItem": [{"html": f"<p>{DONE}</p>"}]},
     "an activity of Google's Takeout has one prompt with a reply in HTML, and does not say to which chat"),
    ("Copilot Chat", {"responderUsername": "Copilot", "requests": [{"message": {"text": ASKED}, "response": []}]},
     "an export of Copilot Chat is not read, because it lacks what the model read"),
    ("Zed", {"title": "Orders", "messages": [{"User": {"content": [{"Text": ASKED}]}}, "Resume"]},
     "threads of Zed are not read: each message is under a key User or Agent. Write the messages as a list"),
)  # fmt: skip
"""Files of such programs without a chat that can be read, each with the reason."""
