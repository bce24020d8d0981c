"""Structured output, required calls, strict arguments and what the log has of them, by OpenAI's client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import openai
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from grpo.log.folder import ServedLog
from grpo.log.logged_logprobs import read_claims
from grpo.policy.grammars import Grammars
from grpo.renderers.reply_grammar import ReplyShape
from grpo.serving.access.preparation import measure_cpu, take_cpu_s
from grpo.serving.protocol.api_errors import APIError
from grpo.serving.requests.constraints import Constraint, Constraints
from grpo.serving.requests.grammar_process import GrammarProcess
from tests.grpo.serving.chat_servers import ChatServer, chat_server

USER = {"role": "user", "content": "Hello, where is my order 1234?"}
ORDER = {
    "type": "object",
    "properties": {"order": {"type": "integer", "minimum": 0, "maximum": 9999}, "kind": {"enum": ["a", "b"]}},
    "required": ["order", "kind"],
    "additionalProperties": False,
}
COLOURS = {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 2, "maxItems": 3}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatServer]:
    with chat_server(tmp_path_factory.mktemp("server")) as running:
        yield running


def ask(server: ChatServer, **fields: Any) -> Any:
    return server.client().chat.completions.create(
        **{"model": "clerk", "messages": [USER], "max_tokens": 200, "seed": 1, **fields}
    )


def schema_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}


def tool(name: str, *, strict: bool = False, parameters: dict[str, Any] = ORDER) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": strict}}


def is_valid(text: str, schema: dict[str, Any]) -> bool:
    return bool(Draft202012Validator(schema).is_valid(json.loads(text)))


def refusal(server: ChatServer, **fields: Any) -> tuple[int, str | None, str]:
    with pytest.raises(openai.APIStatusError) as error:
        ask(server, **fields)
    return error.value.status_code, error.value.param, error.value.message


def test_replies_of_a_batch_are_valid_by_schemas_of_their_own(server: ChatServer):
    """Several requests at once, with three choices each, of two schemas and none."""
    formats = [(schema_of(ORDER), ORDER), (schema_of(COLOURS), COLOURS), ({"type": "json_object"}, {"type": "object"})]
    server.client()
    with ThreadPoolExecutor(6) as threads:
        replies = list(
            threads.map(lambda wanted: ask(server, n=3, response_format=wanted[0], temperature=1.0), formats * 2)
        )
    for (_, schema), reply in zip(formats * 2, replies, strict=True):
        for choice in reply.choices:
            assert is_valid(choice.message.content, schema)
    assert all(choice.finish_reason == "stop" for choice in replies[0].choices + replies[1].choices)


def test_a_stream_joins_to_the_whole_reply_and_a_limit_ends_it(server: ChatServer):
    fields: dict[str, Any] = {"response_format": schema_of(ORDER), "seed": 7}
    whole = ask(server, **fields).choices[0].message.content
    chunks = list(ask(server, stream=True, **fields))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    cut = ask(server, **{**fields, "max_tokens": 4}).choices[0]
    assert cut.finish_reason == "length"
    assert whole.startswith(cut.message.content)


def test_json_is_completed_at_its_limit_and_a_call_is_not(server: ChatServer):
    """A text without an end, in a reply and in the arguments of a call. A call that is cut off is none."""
    notes = {"type": "object", "properties": {"notes": {"type": "string"}}, "required": ["notes"]}
    reply = ask(server, response_format=schema_of(notes), max_tokens=40, temperature=1.0).choices[0]
    assert reply.finish_reason == "length"
    assert set(json.loads(reply.message.content)) == {"notes"}
    for seed in range(3):
        cut = ask(server, tools=[tool("pay", parameters=notes)], tool_choice="required", max_tokens=40, seed=seed)
        assert cut.choices[0].finish_reason == "length"
        assert not cut.choices[0].message.tool_calls


def test_a_call_is_required_named_strict_or_one_of_those_allowed(server: ChatServer):
    tools = [tool("pay"), tool("refund", strict=True)]
    for choice, names in (
        ("required", {"pay", "refund"}),
        ({"type": "function", "function": {"name": "pay"}}, {"pay"}),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "refund"}}]},
            },
            {"refund"},
        ),
    ):
        reply = ask(server, tools=tools, tool_choice=choice, parallel_tool_calls=False).choices[0]
        assert reply.finish_reason == "tool_calls"
        (call,) = reply.message.tool_calls
        assert call.function.name in names
        assert is_valid(call.function.arguments, ORDER)
    for seed in range(4):
        reply = ask(server, tools=[tool("refund", strict=True)], seed=seed, parallel_tool_calls=False).choices[0]
        calls = reply.message.tool_calls or []
        assert len(calls) <= 1
        assert all(is_valid(call.function.arguments, ORDER) for call in calls)


def test_what_cannot_be_kept_is_refused_by_its_name(server: ChatServer):
    unique = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    status, param, message = refusal(server, response_format=schema_of(unique))
    assert (status, param) == (400, "response_format")
    assert "uniqueItems" in message
    beyond = {"type": "object", "properties": {"a": unique}}
    status, param, message = refusal(server, tools=[tool("f", strict=True, parameters=beyond)])
    assert (status, param) == (400, "tools")
    assert "uniqueItems" in message
    assert ask(server, tools=[tool("f", parameters=beyond)]).choices
    large = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(3000)}}
    assert refusal(server, response_format=schema_of(large))[:2] == (400, "response_format")
    long = {"enum": ["x" * 70_000]}
    assert refusal(server, response_format=schema_of(long))[:2] == (400, "response_format")
    other = {"type": "function", "function": {"name": "other"}}
    assert refusal(server, tools=[tool("pay")], tool_choice=other)[:2] == (400, "tool_choice")
    assert refusal(server, tool_choice="required")[:2] == (400, "tool_choice")


EXPLODING = {"allOf": [{"type": "string", "pattern": f".*[a-z]{{{n}}}.*x{n}"} for n in range(10, 40)]}
"""30 patterns of a text: whether any text matches them all takes minutes and gigabytes to find out."""


def grammar_of(server: ChatServer, schema: dict[str, Any]) -> str:
    shape = ReplyShape(schema=schema, has_text=True, calls=None, one_call=False)
    return server.service.versions.loaded[-1].renderer(()).reply_grammar(shape)


def grammar_process(server: ChatServer, **bounds: Any) -> GrammarProcess:
    version = server.service.versions.loaded[-1]
    tokenizer = version.served.policy.tokenizer  # type: ignore[attr-defined]
    return GrammarProcess(tokenizer, version.renderer(()).stop_ids, **bounds)


def test_a_grammar_without_an_end_is_refused_and_not_remembered(server: ChatServer):
    """The process that compiles it is ended, so that the next schema does not wait for it. The same schema is tried
    again, because another time the machine may have less to do."""
    version = server.service.versions.loaded[-1]
    endless = Constraint(
        kind="json_schema", grammar=grammar_of(server, EXPLODING), param="response_format", completes=True
    )
    short = Constraint(kind="json_schema", grammar='start: "a"\n', param="response_format", completes=True)

    async def check() -> None:
        constraints = Constraints(compile_s=0.02)
        for _ in range(2):
            with pytest.raises(APIError, match=r"was not compiled within 0\.02 s") as error:
                await constraints.check(endless, version, version.renderer(()), key="a")
            assert error.value.status == 400
        assert not constraints._results
        constraints.close()
        patient = Constraints()
        await patient.check(short, version, version.renderer(()), key="b")
        assert list(patient._results.values()) == [None]
        patient.close()

    asyncio.run(check())


def test_a_process_that_another_program_has_ended_is_started_again(server: ChatServer):
    """E.g. because the machine ran out of memory, while it was idle. No grammar is refused for that."""
    process = grammar_process(server, compile_s=60.0)
    assert process.compile('start: "a"\n').reason is None
    running = process._process
    assert running is not None
    running.kill()
    running.wait()
    assert process.compile('start: "b"\n').reason is None
    process.close()


def test_a_grammar_is_bounded_in_memory_and_the_next_one_is_compiled(server: ChatServer):
    process = grammar_process(server, compile_s=60.0, memory_bytes=16 * 2**20)
    trial = process.compile(grammar_of(server, EXPLODING))
    assert (trial.reason, trial.timed_out) == (
        "to compile it takes more than 16 MiB of memory. Send a smaller one",
        False,
    )
    assert process.compile('start: "a"\n').reason is None
    assert "no_such_rule" in (process.compile("start: no_such_rule\n").reason or "")
    process.close()


def test_a_refused_schema_costs_its_key_the_time_of_the_compilation(server: ChatServer):
    """One second of it in a minute uses up the budget of refused requests."""
    version = server.service.versions.loaded[-1]
    constraint = Constraint(
        kind="json_schema", grammar=grammar_of(server, EXPLODING), param="response_format", completes=True
    )

    async def seconds() -> float:
        constraints = Constraints(compile_s=0.02)
        measure_cpu()
        with pytest.raises(APIError):
            await constraints.check(constraint, version, version.renderer(()), key="a")
        constraints.close()
        return take_cpu_s()

    assert asyncio.run(seconds()) >= 0.02


def test_the_log_has_the_constraint_and_the_check_of_log_probabilities_leaves_it_out(server: ChatServer):
    """The last token, the only one that was left, has log-probability 0; the check does not compute it again."""
    reply = ask(server, response_format=schema_of(ORDER), logprobs=True)
    records = list(ServedLog(server.folder / "log").read())
    (turn,) = [turn for turn in server.turns() if turn.conversation_id == reply.conversation_id]
    assert turn.constrained == "json_schema"
    sampled = turn.sampler_logprobs[turn.loss_mask]
    assert np.isfinite(sampled).all()
    assert sampled[-1] == 0.0
    assert reply.choices[0].logprobs.content[0].logprob == pytest.approx(float(sampled[0]))
    claims, unchecked = read_claims([record for record in records if record == turn], "clerk")
    assert not claims
    assert unchecked == {"constrained: sampled from the tokens that a grammar allows": 1}


def test_a_conversation_goes_on_after_a_constrained_reply(server: ChatServer):
    asked = {"role": "user", "content": "Where is 77?"}
    first = ask(server, messages=[asked], response_format=schema_of(ORDER))
    messages = [asked, first.choices[0].message.model_dump(), {"role": "user", "content": "Thank you."}]
    second = ask(server, messages=messages)
    assert second.conversation_id == first.conversation_id
    assert [turn.constrained for turn in server.turns() if turn.conversation_id == first.conversation_id] == [
        "json_schema",
        "",
    ]


def test_store_false_is_logged_without_consent(tmp_path_factory: pytest.TempPathFactory):
    from grpo.config.serving import ServiceSettings

    with chat_server(tmp_path_factory.mktemp("consent"), service=ServiceSettings(consent="training")) as running:
        ask(running)
        ask(running, store=False)
        assert [turn.consent for turn in running.turns()] == ["training", ""]


def test_a_later_system_message_is_read_in_its_place(server: ChatServer):
    """The clerk's template prints it; a template that does not is refused, see the renderer's property."""
    later = {"role": "system", "content": "Be brief."}
    reply = ask(server, messages=[USER, later, USER])
    (turn,) = [turn for turn in server.turns() if turn.conversation_id == reply.conversation_id]
    assert [part.message.role for part in turn.turns] == ["user", "system", "user", "assistant"]
    version = server.service.versions.loaded[-1]
    assert version.renderer(()).reads_later_system


def test_grammars_of_a_tokenizer_are_compiled_once(server: ChatServer):
    version = server.service.versions.loaded[-1]
    grammars = Grammars(version.served.policy.tokenizer, [1])  # type: ignore[attr-defined]
    assert not grammars.is_compiled('start: "a"\n')
    first, second = grammars.matcher('start: "a"\n'), grammars.matcher('start: "a"\n')
    assert grammars.is_compiled('start: "a"\n')
    assert first.compute_bitmask() == second.compute_bitmask()


def test_two_requests_at_once_that_name_one_conversation_make_one_turn(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch
):
    """Both wait for their grammars at the same time: one is answered, the other gets 409."""
    begun = ask(server, max_tokens=4)
    check, both = server.service.constraints.check, asyncio.Event()
    waiting = 0

    async def check_together(*arguments: Any, **fields: Any) -> None:
        nonlocal waiting
        await check(*arguments, **fields)
        waiting += 1
        if waiting == 2:
            both.set()
        await asyncio.wait_for(both.wait(), 240)

    monkeypatch.setattr(server.service.constraints, "check", check_together)

    def go_on(_: int) -> int:
        try:
            ask(
                server,
                extra_body={"conversation_id": begun.conversation_id},
                messages=[USER],
                response_format=schema_of(COLOURS),
            )
        except openai.APIStatusError as error:
            return error.status_code
        return 200

    server.client()
    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(go_on, range(2))) == [200, 409]
    later = [turn for turn in server.turns() if turn.conversation_id == begun.conversation_id and turn.parent]
    assert len(later) == 1
