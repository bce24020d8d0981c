"""The chat page of the server in a browser: what a person types and clicks is in the log."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from grpo.log.folder import ServedLog
from grpo.log.records import Feedback
from grpo.messages import Message, Tool
from grpo.serving.engine.served_model import ServedModel
from tests import waiting
from tests.e2e.browser import Page, browser
from tests.grpo.serving.chat_servers import ChatServer, chat_server, clerk

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore")]

QUESTION = "Where is my order 1234? <img src=x> <b>bold</b>"
RESULT = '{"status": "shipped"}'
THUMB_DOWN = '[data-rating="0"]'


def with_tool(current: str) -> ServedModel | None:
    """The clerk with a tool of its environment, which the page may be asked to answer for."""
    parameters = {"type": "object", "properties": {"order": {"type": "string"}}}
    tool = Tool(name="look_up", description="Look an order up.", parameters=parameters)
    return None if current else replace(clerk(), tools=(tool,))


def seed_of_a_call(server: ChatServer) -> int:
    """A seed with which the reply to the question is a tool call."""
    for seed in range(100):
        reply = server.client().chat.completions.create(
            model="clerk", messages=[{"role": "user", "content": QUESTION}], seed=seed
        )
        if reply.choices[0].finish_reason == "tool_calls":
            return seed
    raise AssertionError("no seed of 100 ends with a call")


def type_text(tab: Page, text: str, *keys: str) -> None:
    """Insert a text where the focus is, then press keys."""
    tab.send("Input.insertText", text=text)
    for key in keys:
        character = {"Enter": "\r", "Space": " "}.get(key, "")
        code = {"Enter": 13, "Space": 32, "Tab": 9}[key]
        event = {"key": character if key == "Space" else key, "code": key, "windowsVirtualKeyCode": code}
        tab.send("Input.dispatchKeyEvent", type="keyDown", text=character, **event)
        tab.send("Input.dispatchKeyEvent", type="keyUp", **event)


def enter(tab: Page, server: ChatServer, key: str) -> None:
    tab.open(f"{server.url}/")
    tab.wait("document.readyState === 'complete' && document.activeElement.id === 'key'")
    type_text(tab, key, "Enter")


def last_reply(selector: str) -> str:
    """JavaScript of an element of the last reply."""
    return f"[...document.querySelectorAll('li.assistant')].at(-1).querySelector('{selector}')"


def replied(tab: Page, count: int) -> None:
    tab.wait(f"document.querySelectorAll('.feedback').length === {count} && !document.querySelector('.busy')")


def feedback_of(log: Path, *, count: int) -> list[Feedback]:
    """Feedback in a log, once there is so much of it: the page has said of an earlier one that it is recorded."""

    def feedback() -> list[Feedback]:
        records = list(ServedLog(log).read())
        return [record for record in records if isinstance(record, Feedback)]

    waiting.until(f"{count} records of feedback", lambda: len(feedback()) >= count, patience_s=240)
    return feedback()


def test_a_person_types_answers_a_call_rates_and_corrects_and_all_is_in_the_log(tmp_path: Path):
    """By keyboard alone; the page asks this server alone, and shows markup as text."""
    with chat_server(tmp_path / "server", with_tool) as server, browser(tmp_path / "profile") as tab:
        seed = seed_of_a_call(server)
        tried = len(server.turns())
        key = server.client("visitor", ("chat", "feedback")).api_key
        enter(tab, server, "sk-grpo-wrong")
        tab.wait("document.getElementById('error').textContent.includes('not known')")
        type_text(tab, key, "Enter")
        tab.wait("document.activeElement.id === 'text'")

        tab.evaluate(f"document.getElementById('seed').value = '{seed}'")
        type_text(tab, QUESTION, "Enter")
        replied(tab, 1)
        call = server.turns()[-1].turns[-1].message.tool_calls[0]
        assert tab.evaluate(f"{last_reply('.name')}.textContent") == call.name
        assert json.loads(tab.evaluate(f"{last_reply('.arguments')}.textContent")) == dict(call.arguments)
        assert tab.evaluate("document.getElementById('text').disabled") is True

        type_text(tab, RESULT, "Tab", "Enter")
        replied(tab, 2)
        reply = server.turns()[-1].turns[-1].message.content
        assert tab.evaluate(f"{last_reply('.text')}.textContent") == reply
        assert tab.evaluate("document.getElementById('version').textContent") == "clerk/1"

        tab.evaluate(f"{last_reply(THUMB_DOWN)}.focus()")
        type_text(tab, "", "Space")
        tab.wait(f"{last_reply(THUMB_DOWN)}.ariaPressed === 'true'")
        tab.evaluate(f"{last_reply('summary')}.focus()")
        type_text(tab, "", "Enter", "Tab")
        tab.evaluate("document.activeElement.select()")
        type_text(tab, "It has been shipped.", "Tab")
        type_text(tab, "It knew.", "Tab", "Enter")
        tab.wait(f"{last_reply('.state')}.textContent === 'Recorded.'")
        records = feedback_of(tmp_path / "server" / "log", count=2)
        turns = server.turns()[tried:]
        shown = tab.evaluate("document.getElementById('conversation').textContent")
        assert {url for url in tab.asked if not url.startswith((f"{server.url}/", "data:"))} == set()
        assert tab.evaluate("document.querySelector('li.user .text').textContent") == QUESTION
        assert tab.evaluate("document.querySelector('#messages img, #messages b')") is None
        assert tab.evaluate("try { document.body.innerHTML = '<b>x</b>' } catch (error) { error.name }") == "TypeError"
        stored = "[localStorage.length, document.cookie, sessionStorage['grpo.key']]"
        assert tab.evaluate(stored) == [0, "", key]

    assert [turn.conversation_id for turn in turns] == [shown, shown]
    assert [turn.turns[0].message.content for turn in turns] == [QUESTION, RESULT]
    assert turns[1].parent == turns[0].id
    assert {(record.conversation_id, record.turn_id) for record in records} == {(shown, turns[1].id)}
    given = [(record.rating, record.correction, record.comment) for record in records]
    shipped = Message(role="assistant", content="It has been shipped.")
    assert given == [(0.0, None, None), (None, shipped, "It knew.")]


def test_a_revoked_key_leads_back_to_the_entry_and_a_stopped_reply_leaves_the_text(tmp_path: Path):
    """Nothing that was typed is lost: a reply that is stopped gives its message back."""
    with chat_server(tmp_path / "server", with_tool) as server, browser(tmp_path / "profile") as tab:
        enter(tab, server, server.client("visitor", ("chat",)).api_key)
        tab.wait("document.activeElement.id === 'text'")
        tab.evaluate("window.fetch = (path, options) => new Promise((_, reject) =>"
                     "options.signal.addEventListener('abort', () => reject(options.signal.reason)))")  # fmt: skip
        type_text(tab, "Hello", "Enter")
        tab.wait("!document.getElementById('stop').hidden")
        tab.evaluate("document.getElementById('stop').click()")
        tab.wait("document.getElementById('text').value === 'Hello' && !document.querySelector('li')")
        tab.reload()
        tab.wait("document.activeElement.id === 'text'")
        server.keys.revoke("visitor")
        type_text(tab, "Hello", "Enter")
        tab.wait("document.activeElement.id === 'key' && !sessionStorage.length")
        assert "revoked" in tab.evaluate("document.getElementById('error').textContent")


MARKUP = '</script><img src=x onerror="window.hit = 1"><a href="javascript:window.hit = 2">x</a>'
EVIL_STREAM = """
window.fetch = async () => {
  const named = { name: markup, arguments: JSON.stringify({ markup }) };
  const calls = [{ index: 0, id: "a", type: "function", function: named }];
  const chunks = [{ content: markup.slice(0, 9) }, { content: markup.slice(9) }, { tool_calls: calls }].map((delta) => (
    { id: "t", conversation_id: "c", system_fingerprint: "clerk/1-f", choices: [{ index: 0, delta }] }));
  return new Response([...chunks.map(JSON.stringify), "[DONE]"].map((data) => `data: ${data}\n\n`).join(""));
};
"""


def test_a_reload_keeps_the_conversation_and_markup_of_a_model_stays_text(tmp_path: Path):
    """The next turn after a reload goes on with the same conversation; a server that is gone leaves the message."""
    with chat_server(tmp_path / "server", with_tool) as server, browser(tmp_path / "profile") as tab:
        seed = seed_of_a_call(server)
        enter(tab, server, server.client("visitor", ("chat", "feedback")).api_key)
        tab.wait("document.activeElement.id === 'text'")
        tab.evaluate(f"document.getElementById('seed').value = '{seed}'")
        type_text(tab, QUESTION, "Enter")
        replied(tab, 1)
        shown = tab.evaluate("document.getElementById('messages').innerText")
        for result in (None, RESULT):
            if result is not None:
                type_text(tab, result, "Tab", "Enter")
                replied(tab, 2)
                shown = tab.evaluate("document.getElementById('messages').innerText")
            tab.reload()
            tab.wait("document.querySelector('.feedback')")
            assert tab.evaluate("document.getElementById('messages').innerText") == shown
        first, second = server.turns()[-2:]
        assert second.parent == first.id

        tab.evaluate("document.getElementById('new').click()")
        assert tab.evaluate("document.querySelector('li')") is None
        tab.evaluate(f"window.markup = {json.dumps(MARKUP)}; {EVIL_STREAM}")
        type_text(tab, "Hello", "Enter")
        replied(tab, 1)
        assert tab.evaluate(f"{last_reply('.text')}.textContent") == MARKUP
        assert tab.evaluate(f"{last_reply('.name')}.textContent") == MARKUP
        assert tab.evaluate("document.querySelector('#messages img, #messages a') || window.hit") is None

        tab.evaluate("window.fetch = async () => { throw new TypeError('Failed to fetch') }")
        type_text(tab, MARKUP, "Tab", "Enter")
        tab.wait("document.getElementById('error').textContent.startsWith('the server does not answer')")
        assert tab.evaluate(f"{last_reply('textarea')}.value") == MARKUP
