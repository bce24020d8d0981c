from __future__ import annotations

import asyncio
import gzip
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.agent import AgentConfig
from grpo.config.dpo import ServedPairs, WrittenPairs
from grpo.errors import DataError
from grpo.learner.offline.preferences import WrittenPair, pair_logprobs, preference_metrics, read_pairs, tokenize_pair
from grpo.log import ServingLog
from grpo.messages import Message, Tool
from grpo.policy.transformers.model import TransformersPolicy
from grpo.renderers.chat_template import Renderer
from grpo.scenarios.reward_data import PreferencePair
from grpo.scenarios.served_tuning import RedactedCorrection, write_pairs
from tests.grpo.log.fixtures import feedback, turn
from tests.grpo.serving.chat_servers import CLERK, chat_server, clerk, load_clerk

USER = {"role": "user", "content": "Hi."}
GOOD, BAD = ({"role": "assistant", "content": text} for text in ("Hello.", "What?"))


def written(folder: Path, *records: object) -> WrittenPairs:
    path = folder / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    return WrittenPairs(kind="jsonl", path=str(path))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rejected": [GOOD]}, "line 2 is not a preference pair .chosen and rejected are the same"),
        ({"chosen": [USER]}, "chosen must be a reply of the assistant"),
        ({"chosen": [GOOD, BAD]}, "chosen must be one message after the prompt, the agent's reply, and has 2"),
        ({"chosen": [{**GOOD, "weight": 0}]}, "chosen has weight 0, so that it must not be learned"),
        ({"prompt": None, "chosen": [USER, GOOD], "rejected": [BAD]}, "messages are not a list: NoneType"),
        ({"prompt": [USER, GOOD]}, "its prompt ends with a message of the assistant"),
        ({"prompt": []}, "the conversation has no messages"),
        ({"tools": [{"description": "Look up."}]}, "tool without a name"),
    ],
)
def test_a_line_that_is_not_a_pair_is_an_error_with_its_place(tmp_path: Path, changes: dict[str, object], reason: str):
    """Nothing is skipped silently; the message has the form of a line."""
    pair = {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]}
    with pytest.raises(DataError, match=reason) as error:
        read_pairs(written(tmp_path, pair, {**pair, **changes}))
    assert 'Write {"prompt": [' in str(error.value)


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        (
            {"prompt": "q", "chosen": "a\ud83d", "rejected": "b"},
            "line 1 .* .broken JSON: unexpected end",
        ),
        ({"prompt": "q", "chosen": "a", "rejected": "b", "score": float("nan")}, "line 1 .* .broken JSON: expected"),
        (
            {"prompt": "\n\nHuman: q\n\nAssistant:", "chosen": "a", "rejected": "b"},
            "a whole chat in one text: in prompt",
        ),
        ({"chosen": "Human: q\n\nAssistant: a", "rejected": "Human: q\n\nAssistant: b"}, "a whole chat in one text"),
    ],
    ids=["half a character", "NaN", "a prompt", "both sides"],
)
def test_text_that_is_no_reply_is_an_error_with_its_place(tmp_path: Path, pair: dict[str, object], reason: str):
    """Python's own JSON reader lets the first two pass."""
    with pytest.raises(DataError, match=reason):
        read_pairs(written(tmp_path, pair))


def test_a_reply_to_a_prompt_may_be_a_transcript(tmp_path: Path):
    """A dialogue that was asked for is a reply."""
    (pair,) = read_pairs(
        written(tmp_path, {"prompt": "A dialogue?", "chosen": "User: Hi.\nBot: Hello.", "rejected": "No."})
    )
    assert pair.chosen.content == "User: Hi.\nBot: Hello."


def test_the_system_prompt_of_a_pair_may_be_next_to_it(tmp_path: Path):
    """As in Orca's pairs. A conversation that begins with a system message keeps its own."""
    pair = {"system": "In German.", "prompt": "Hi.", "chosen": "Hallo.", "rejected": "Hello."}
    own = {"role": "system", "content": "In French."}
    first, second = read_pairs(written(tmp_path, pair, {**pair, "prompt": [own, USER]}))
    assert [(message.role, message.content) for message in first.prompt] == [("system", "In German."), ("user", "Hi.")]
    assert [message.content for message in second.prompt] == ["In French.", "Hi."]


def test_a_compressed_file_of_pairs_is_read(tmp_path: Path):
    """By the same reader as scenarios."""
    path = tmp_path / "pairs.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps({"prompt": "Hi.", "chosen": "a", "rejected": "b"}).encode()))
    (pair,) = read_pairs(WrittenPairs(kind="jsonl", path=str(path)))
    assert pair.chosen.content == "a"


def test_a_pair_is_in_the_format_of_openai(tmp_path: Path):
    """Arguments are JSON, and results name their calls and become one, as in service. A pair is named by its line."""
    calls = [
        {"id": f"c{order}", "type": "function", "function": {"name": "look_up", "arguments": f'{{"order": {order}}}'}}
        for order in (7, 8)
    ]
    results = [{"role": "tool", "tool_call_id": f"c{order}", "content": text} for order, text in ((8, "b"), (7, "a"))]
    prompt = [USER, {"role": "assistant", "content": None, "tool_calls": calls}, *results]
    pair = {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]}
    source = written(tmp_path, pair, {**pair, "prompt": prompt})
    first, second = read_pairs(source)
    assert [message.role for message in second.prompt] == ["user", "assistant", "tool"]
    assert [call.arguments for call in second.prompt[1].tool_calls] == [{"order": 7}, {"order": 8}]
    assert second.prompt[2].content == '["a", "b"]'
    assert [first.place, second.place] == [f"{source.path}, line 1", f"{source.path}, line 2"]


def test_pairs_are_read_in_the_formats_of_trl_and_openai(tmp_path: Path):
    """Explicit and implicit prompts, texts, JSON in a text, whole conversations after a prompt, and OpenAI's keys."""
    tools = [{"type": "function", "function": {"name": "look_up"}}]
    forms: list[dict[str, object]] = [
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": USER["content"], "chosen": GOOD["content"], "rejected": BAD["content"]},
        {"prompt": json.dumps([USER]), "chosen": GOOD, "rejected": [BAD]},
        {"prompt": USER["content"], "chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"input": {"messages": [USER], "tools": tools}, "preferred_output": [GOOD], "non_preferred_output": [BAD]},
    ]
    pairs = read_pairs(written(tmp_path, *forms))
    contents = [[message.content for message in (*pair.prompt, pair.chosen, pair.rejected)] for pair in pairs]
    assert contents == [["Hi.", "Hello.", "What?"]] * len(forms)
    assert pairs[-1].tools == (Tool(name="look_up", description="", parameters={}),)
    with pytest.raises(DataError, match="chosen and rejected differ before their last message"):
        read_pairs(written(tmp_path, {"chosen": [USER, GOOD], "rejected": [{**USER, "content": "Ho."}, BAD]}))


@pytest.mark.parametrize(
    ("tools", "read"),
    [
        ([{"name": "f", "input_schema": {"type": "object"}}], (Tool(name="f", parameters={"type": "object"}),)),
        ([{"function_declarations": [{"name": "f"}]}], (Tool(name="f"),)),
        (['{"name": "f"}'], (Tool(name="f"),)),
        ("", ()),
        ("null", None),
        (None, None),
    ],
)
def test_tools_are_read_in_the_formats_of_other_servers(tmp_path: Path, tools: object, read: tuple[Tool, ...] | None):
    """Anthropic's, Gemini's, JSON in texts, no tools, and the environment's."""
    [pair] = read_pairs(written(tmp_path, {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD], "tools": tools}))
    assert pair.tools == read


@pytest.mark.parametrize("text", ["[]", '[{"id": 1}]', "[1]", '{"role": "user"}'])
def test_a_text_that_is_other_json_is_a_text(tmp_path: Path, text: str):
    """As a task that extracts data has it, on either side."""
    [pair] = read_pairs(written(tmp_path, {"prompt": text, "chosen": text, "rejected": [BAD], "input": {"order": 7}}))
    assert (pair.prompt[0].content, pair.chosen.content) == (text, text)


def test_pairs_that_were_written_from_a_log_are_read_as_they_were_served(tmp_path: Path):
    """A result after a malformed call, which is read as text, and a tool that the client sent without parameters."""
    served = (
        Message(role="user", content="Hi."),
        Message(role="assistant", content="<tool_call>look", malformed="not JSON"),
        Message(role="tool", content="not a tool call"),
    )
    chosen, rejected = (Message(role="assistant", content=text) for text in ("Hello.", "What?"))
    pair = PreferencePair(
        id="correction-a", group="a", category="general", source="served", licence="own", prompt=served,
        chosen=chosen, rejected=rejected,
    )  # fmt: skip
    tools = (Tool(name="look_up"),)
    write_pairs(tmp_path / "pairs.jsonl", [RedactedCorrection(pair=pair, tools=tools)])
    [read] = read_pairs(WrittenPairs(kind="jsonl", path=str(tmp_path / "pairs.jsonl")))
    assert [message.to_template() for message in read.prompt] == [message.to_template() for message in served]
    assert (read.chosen, read.rejected, read.tools) == (chosen, rejected, tools)


def test_a_file_without_pairs_is_an_error(tmp_path: Path):
    """Its remedy is to leave the section out."""
    with pytest.raises(DataError, match=r"no preference pair in .*\. Add some, or leave dpo out"):
        read_pairs(written(tmp_path))
    with pytest.raises(DataError, match=r"none\.jsonl cannot be read: .*\. Correct dpo\.pairs\.path"):
        read_pairs(WrittenPairs(kind="jsonl", path=str(tmp_path / "none.jsonl")))


def test_the_corrections_of_a_serving_log_are_pairs(tmp_path: Path):
    """Of an own conversation with consent; the correction is chosen, and the reply that was served is rejected."""

    async def serve() -> None:
        async with ServingLog(tmp_path) as log:
            for name, consent in (("a", "training"), ("b", "")):
                await log.append(replace(turn(name), conversation_id=name, consent=consent))
                await log.append(feedback(f"on {name}", conversation_id=name, correction=f"Better {name}."))

    source = ServedPairs(kind="served", path=str(tmp_path), licences=("own",))
    with pytest.raises(DataError, match=r"no preference pair in the serving log .*: it has no correction\. Give"):
        read_pairs(source)
    asyncio.run(serve())
    [pair] = read_pairs(source)
    assert [message.content for message in pair.prompt] == ["Question a?"]
    assert (pair.chosen.content, pair.rejected.content, pair.tools) == ("Better a.", "Answer a.", ())


def test_the_tokens_of_a_prompt_are_those_that_were_served(tmp_path: Path):
    """Of the reply to a result of the client's tools, after a call; the correction ends with the stop token."""
    agent = MultiTurnAgent(AgentConfig(model_name=str(CLERK), system_prompt="You are a clerk."))
    tool = {"name": "look_up", "description": "Look up.", "parameters": {"type": "object", "properties": {}}}
    with chat_server(tmp_path, lambda current: None if current else clerk(agent=agent)) as server:
        tools, messages = [{"type": "function", "function": tool}], [{"role": "user", "content": "My number is 4711."}]
        create = partial(server.client().chat.completions.create, model="clerk", tools=tools, temperature=0)
        answer = create(messages=messages).choices[0].message
        result = {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": '{"state": "lost"}'}
        create(messages=[*messages, answer.model_dump(exclude_none=True), result])
        first, second = server.turns()
    *context, reply = (part for turn in (first, second) for part in turn.turns)
    served = np.concatenate([first.token_ids, second.token_ids])
    renderer = Renderer(load_clerk().tokenizer, tools=(Tool(**tool),))
    corrected = Message(role="assistant", content="It is lost.")
    pair = WrittenPair(
        prompt=tuple(part.message for part in context),
        chosen=corrected,
        rejected=reply.message,
        tools=None,
        place="line 1",
    )
    tokens = tokenize_pair(pair, renderer, max_context=2048)
    assert context[0].message.content.startswith("You are a clerk.")
    assert tokens.prompt_ids.tolist() == served[: reply.start].tolist()
    assert tokens.rejected_ids.tolist() == served[reply.start : reply.stop].tolist()
    assert renderer.decode(tokens.chosen_ids.tolist()) == "It is lost."
    assert tokens.chosen_ids[-1] == renderer.stop_id
    assert tokens.chosen_mask.all()
    with pytest.raises(DataError, match=r"line 1: the pair has \d+ tokens, but the model reads 20\. Shorten it"):
        tokenize_pair(pair, renderer, max_context=20)


def test_log_probabilities_are_summed_over_the_reply(policy: TransformersPolicy):
    """By hand from the logits of one sequence at a time, also in passes of one sequence."""
    messages = {name: Message(role="assistant", content=name) for name in ("Yes, of course.", "No.", "Hm?")}
    yes, no, other = messages.values()
    prompt = (Message(role="user", content="Is it there?"),)
    renderer = Renderer(policy.tokenizer)
    pairs = [
        tokenize_pair(
            WrittenPair(prompt=prompt, chosen=chosen, rejected=rejected, tools=None, place="p"),
            renderer,
            max_context=policy.max_context,
        )
        for chosen, rejected in ((yes, no), (other, yes))
    ]
    expected = []
    for reply in (yes, no, other, yes):
        ids, mask = renderer.tokenize_conversation((*prompt, reply))
        logits = policy.model(input_ids=torch.tensor([ids])).logits[0].detach()
        logprobs = torch.log_softmax(logits.float(), dim=-1)
        expected.append(sum(float(logprobs[k - 1, ids[k]]) for k in range(len(ids)) if mask[k]))
    for max_tokens in (16384, 1):
        computed = pair_logprobs(policy.model, pairs, max_tokens=max_tokens)
        assert computed == pytest.approx(np.array(expected).reshape(2, 2), abs=1e-4)


def test_metrics_of_pairs_by_hand():
    """Margins .5·(1 − 0) = .5, .5·(0 − 2) = −1, .5·(1 − 1) = 0: two thirds of them halves of a tie or above.

    Loss (ln(1 + e^−.5) + ln(1 + e^1) + ln 2)/3 = (.474077 + 1.313262 + .693147)/3 = .826829. Margin −.5/3. Implicit
    rewards: right, wrong, tied: .5. Likelier: −1 > −2, −3 < −2, −1 > −4: 2/3.
    """
    policy = np.array([[-1.0, -2.0], [-3.0, -2.0], [-1.0, -4.0]])
    reference = np.array([[-2.0, -2.0], [-3.0, -4.0], [-2.0, -5.0]])
    metrics = preference_metrics(policy, reference, beta=0.5)
    assert metrics.loss == pytest.approx(0.826829, abs=1e-6)
    assert metrics.margin == pytest.approx(-1 / 6)
    assert metrics.reward_accuracy == pytest.approx(0.5)
    assert metrics.ranking_accuracy == pytest.approx(2 / 3)
    untrained = preference_metrics(reference, reference, beta=0.5)
    assert (untrained.loss, untrained.margin, untrained.reward_accuracy) == (pytest.approx(0.693147, abs=1e-6), 0, 0.5)
