from __future__ import annotations

import json

from grpo.messages import Message, ToolCall
from grpo.serving.protocol.chat_response import DONE, Choice, Completion, TokenLogprob, Usage, call_id, event

COMPLETION = Completion(id="chatcmpl-1", created=5, model="clerk", conversation_id="c", fingerprint="clerk/1-ab")
CALLS = (ToolCall(name="look_up", arguments={"order": "é"}), ToolCall(name="end", arguments={}))


def choice(content: str, *calls: ToolCall) -> Choice:
    message = Message(role="assistant", content=content, tool_calls=calls)
    return Choice(index=0, message=message, finish_reason="tool_calls" if calls else "stop", turn_id="t")


def test_a_body_has_content_calls_and_usage():
    """Content is null beside calls alone, and a text, also an empty one, without calls."""
    body = COMPLETION.body([choice("", *CALLS)], Usage(prompt=3, completion=4, cached=2))
    message = body["choices"][0]["message"]
    assert message["content"] is None
    assert (
        [call["id"] for call in message["tool_calls"]] == [call_id("t", 0), call_id("t", 1)] == ["call_t_0", "call_t_1"]
    )
    assert message["tool_calls"][0]["function"] == {"name": "look_up", "arguments": '{"order": "é"}'}
    assert body["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    assert COMPLETION.body([choice("")], Usage(prompt=1, completion=1))["choices"][0]["message"]["content"] == ""


def test_last_chunks_have_the_rest_each_call_once_and_an_empty_end():
    chunks = list(COMPLETION.last_chunks(choice("It is here.", *CALLS), "It is", None))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"content": " here."}
    assert [delta["tool_calls"][0]["index"] for delta in deltas[1:3]] == [0, 1]
    assert deltas[3] == {}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "tool_calls"]
    assert [chunk["choices"][0]["delta"] for chunk in COMPLETION.last_chunks(choice("a"), "a", None)] == [{}]


def test_log_probabilities_of_the_last_tokens_come_without_content():
    token = TokenLogprob(content="é".encode(), logprob=-0.5, top=((b"\xc3", -0.25),))
    first, last = COMPLETION.last_chunks(choice("a"), "a", (token,))
    assert first["choices"][0]["delta"] == {"content": ""}
    assert first["choices"][0]["logprobs"]["content"] == [
        {
            "token": "é",
            "logprob": -0.5,
            "bytes": [195, 169],
            "top_logprobs": [{"token": "\N{REPLACEMENT CHARACTER}", "logprob": -0.25, "bytes": [195]}],
        }
    ]
    assert last["choices"][0]["logprobs"] is None


def test_usage_of_choices_counts_their_prompt_once():
    parts = [Usage(prompt=3, completion=4, cached=1), Usage(prompt=3, completion=5, cached=3)]
    assert Usage.total(parts) == Usage(prompt=3, completion=9, cached=3)
    assert Usage.total([]) == Usage(prompt=0, completion=0)


def test_an_event_is_one_line_of_data():
    data = event({"text": "a\nb"})
    assert data.count(b"\n") == 2
    assert json.loads(data.removeprefix(b"data: ")) == {"text": "a\nb"}
    assert event(DONE) == b"data: [DONE]\n\n"
