"""Preference pairs for DPO: their file, tokens, and the metrics of a policy on them.

prompt_ids     S U1 A1 U2     the conversation up to the reply, rendered as it is served
chosen_ids     C              preferred reply, rendered as the model's own, stop token included
rejected_ids   A2             the other reply
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.artifacts import local_path
from grpo.config.dpo import PairSettings, ServedPairs
from grpo.config.renderer import RendererSettings
from grpo.data_errors import try_call
from grpo.environments.environment import Environment
from grpo.errors import DataError
from grpo.learner.metrics import PreferenceMetrics
from grpo.learner.offline.demonstrations import with_agent_prompt
from grpo.learner.offline.read_back import check_read_back
from grpo.learner.offline.training_lines import read_lines
from grpo.messages import Message, Role, Tool
from grpo.policy.renderer import make_renderer
from grpo.renderers.chat_template import Renderer
from grpo.scenarios.logged_chat import to_conversation
from grpo.scenarios.readers.files.filled_nulls import without_filled_nulls
from grpo.scenarios.readers.files.json_cells import cell_value
from grpo.scenarios.readers.messages.api_dialects import rewrite_tools
from grpo.scenarios.readers.messages.openai_format import parse_arguments, parse_message, parse_messages, parse_tools
from grpo.scenarios.readers.messages.transcripts import refuse_transcript
from grpo.scenarios.readers.served import join_served
from grpo.scenarios.served_tuning import Corrections, RedactedCorrection, collect_corrections

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from grpo.learner.batch import Sample
    from grpo.learner.trl.dpo_trainer import TokenizedPair

_FORM = '{"prompt": [{"role": …, "content": …}, …], "chosen": [{"role": "assistant", …}], "rejected": [{…}]}'


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPair:
    """Two replies to the same prompt. `chosen` is preferred to `rejected`."""

    prompt: tuple[Message, ...]
    chosen: Message
    rejected: Message
    tools: tuple[Tool, ...] | None
    """Tools that the conversation was served with. None means the environment's tools."""
    place: str


def read_pairs(source: PairSettings) -> list[WrittenPair]:
    """Read all pairs, in the order of the source.

    Raises `DataError` if the source is missing or empty, or if a line is not a pair of two different replies.
    """
    if isinstance(source, ServedPairs):
        return [_served_pair(item) for item in read_served_pairs(source).used]
    pairs = list(
        read_lines(local_path(source.path), _parse, noun="a preference pair", form=_FORM, setting="dpo.pairs.path")
    )
    if not pairs:
        raise DataError(f"no preference pair in {source.path}. Add some, or leave dpo out")
    return pairs


def read_served_pairs(source: ServedPairs) -> Corrections:
    """Corrections in a serving log. Raises `DataError` if none can be used, with the reasons."""
    collected = collect_corrections([join_served(source)], source)
    if not collected.used:
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(collected.rejected.items()))
        raise DataError(
            f"no preference pair in the serving log {source.path}: {counts or 'it has no correction'}. Give feedback "
            "with corrections, allow more licences or consents, or leave dpo out"
        )
    return collected


def _served_pair(item: RedactedCorrection) -> WrittenPair:
    pair = item.pair
    return WrittenPair(prompt=pair.prompt, chosen=pair.chosen, rejected=pair.rejected, tools=item.tools, place=pair.id)


def _parse(record: Any, place: str) -> WrittenPair:
    """Parse a pair in TRL's formats, or in OpenAI's for preference tuning.

    {"prompt": [U1, A1, U2], "chosen": [C], "rejected": [R]}                 explicit prompt
    {"chosen": [U1, A1, U2, C], "rejected": [U1, A1, U2, R]}                 implicit prompt
    {"prompt": "U1", "chosen": "C", "rejected": "R"}                         texts
    {"input": {"messages": [U1]}, "preferred_output": [C], "non_preferred_output": [R]}

    A text in `system` is the system prompt of a conversation that has none.
    """
    record = without_filled_nulls(record)
    if "preferred_output" in record:
        given = record["input"]
        record = {"prompt": given["messages"], "tools": given.get("tools"), **record}
        record |= {"chosen": record["preferred_output"], "rejected": record["non_preferred_output"]}
    prompts = ("prompt",) if "prompt" in record else ("chosen", "rejected")
    for name in prompts:  # a reply to a prompt may be about transcripts
        if isinstance(record[name], str):
            refuse_transcript(record[name], name)
    sides = {side: _messages(record[side], side, "assistant") for side in ("chosen", "rejected")}
    if "prompt" in record:
        prompt = _messages(record["prompt"], "prompt", "user")
    else:
        prompt = sides["chosen"][:-1]
        if prompt != sides["rejected"][:-1]:
            raise DataError("chosen and rejected differ before their last message. Give both the same prompt")
    if not prompt:
        raise DataError("the conversation has no messages. Give at least one")
    system = parse_message({"role": "system", "content": record.get("system")}, 0)
    chosen, rejected = (
        _reply(side[len(prompt) :] if len(side) > len(prompt) and side[: len(prompt)] == prompt else side, name)
        for name, side in sides.items()
    )
    if prompt[-1].role not in ("user", "tool"):
        raise DataError(
            f"its prompt ends with a message of the {prompt[-1].role}, and a reply answers a user or a tool"
        )
    if chosen == rejected:
        raise DataError("chosen and rejected are the same: no reply is preferred")
    if system.content.strip() and prompt[0].role != "system":
        prompt = (*to_conversation([system]), *prompt)
    return WrittenPair(prompt=prompt, chosen=chosen, rejected=rejected, tools=_tools(record.get("tools")), place=place)


def _messages(value: Any, name: str, speaker: Role) -> tuple[Message, ...]:
    """Messages in OpenAI's format, also as JSON in a text. Any other text is one message of the speaker."""
    parsed = try_call(lambda: cell_value(value, f"{name} is")) if isinstance(value, str) else value
    if isinstance(value, str) and not (
        isinstance(parsed, list) and parsed and all(isinstance(item, dict) and "role" in item for item in parsed)
    ):
        return (Message(role=speaker, content=value),)
    logged = parse_messages([parsed] if isinstance(parsed, dict) else parsed)
    if name != "prompt" and logged and not logged[-1].weight:
        raise DataError(f"{name} has weight 0, so that it must not be learned. Leave the pair out")
    return to_conversation(logged)


def _reply(messages: Sequence[Message], side: str) -> Message:
    if len(messages) != 1:
        raise DataError(f"{side} must be one message after the prompt, the agent's reply, and has {len(messages)}")
    (reply,) = messages
    if reply.role != "assistant" or not (reply.content.strip() or reply.tool_calls):
        raise DataError(f"{side} must be a reply of the assistant that is not empty")
    return reply


def _tools(value: Any) -> tuple[Tool, ...] | None:
    """Tools as they are written, because the policy reads them as they were served. None if there are none."""
    if isinstance(value, str):
        value = cell_value(value, "tools are") if value.strip() else []
    if value is None:
        return None
    parse_tools(value)  # raises an error if a tool cannot be read
    tools = [parse_arguments(tool, "a tool") if isinstance(tool, str) else tool for tool in rewrite_tools(value)]
    functions = [tool.get("function", tool) for tool in tools]
    return tuple(
        Tool(name=part["name"], description=part.get("description") or "", parameters=part.get("parameters") or {})
        for part in functions
    )


class PairRenderers:
    """Renderers of pairs in the prompts of these episodes. Pairs that state the same tools share one."""

    def __init__(
        self,
        agent: MultiTurnAgent,
        environment: Environment,
        tokenizer: PreTrainedTokenizerBase,
        settings: RendererSettings | None,
    ) -> None:
        self._agent, self._environment = agent, environment
        self._tokenizer, self._settings = tokenizer, settings
        self._renderers: dict[str, Renderer] = {}

    def prepared(self, pair: WrittenPair) -> tuple[WrittenPair, Renderer]:
        """The pair with the system prompt of the episodes, and the renderer with its tools."""
        tools = (*(self._environment.tools if pair.tools is None else pair.tools), *self._agent.tools)
        key = json.dumps([tool.to_template() for tool in tools])
        if key not in self._renderers:
            self._renderers[key] = make_renderer(self._tokenizer, tools=tools, settings=self._settings)
        prompt = with_agent_prompt(pair.prompt, self._agent, self._environment)
        return replace(pair, prompt=prompt), self._renderers[key]


def pair_tokens(pair: WrittenPair, renderer: Renderer, *, max_context: int) -> tuple[list[int], list[int], list[int]]:
    """Token ids of the prompt, the chosen and the rejected reply.

    Raises `DataError` if a side exceeds the context, or if a call does not read back as it was written.
    """
    for side, reply in (("chosen", pair.chosen), ("rejected", pair.rejected)):
        if reply.tool_calls:
            check_read_back(reply, pair.prompt, renderer, f"{pair.place}: {side}")
    chosen, rejected = (renderer.encode_reply(reply, pair.prompt) for reply in (pair.chosen, pair.rejected))
    whole, _ = renderer.tokenize_conversation((*pair.prompt, pair.chosen))
    prompt = whole[: len(whole) - len(chosen)]
    longest = len(prompt) + max(len(chosen), len(rejected))
    if longest > max_context:
        raise DataError(
            f"{pair.place}: the pair has {longest} tokens, but the model reads {max_context}. Shorten it or leave it "
            "out"
        )
    return prompt, chosen, rejected


def tokenize_pair(pair: WrittenPair, renderer: Renderer, *, max_context: int) -> TokenizedPair:
    """Tokens of a pair, with the loss on both replies. Raises `DataError` like `pair_tokens`."""
    from grpo.learner.trl.dpo_trainer import TokenizedPair  # the import takes 2.5 s

    prompt, chosen, rejected = pair_tokens(pair, renderer, max_context=max_context)
    return TokenizedPair(
        prompt_ids=np.array(prompt, np.int32),
        chosen_ids=np.array(chosen, np.int32),
        chosen_mask=np.ones(len(chosen), np.bool_),
        rejected_ids=np.array(rejected, np.int32),
        rejected_mask=np.ones(len(rejected), np.bool_),
        scenario_id=pair.place,
    )


def pair_logprobs(
    model: PreTrainedModel, pairs: Sequence[TokenizedPair], *, max_tokens: int
) -> NDArray[np.float64]:  # [pairs, 2]
    """Log-probability of the chosen and of the rejected reply of each pair, in nats."""
    from grpo.learner.logprobs import sum_logprobs

    samples = [sample for pair in pairs for sample in _samples(pair)]
    return np.array(sum_logprobs(model, samples, max_tokens=max_tokens)).reshape(-1, 2)


def _samples(pair: TokenizedPair) -> tuple[Sample, Sample]:
    sides = ((pair.chosen_ids, pair.chosen_mask), (pair.rejected_ids, pair.rejected_mask))
    chosen, rejected = (_sample(pair.prompt_ids, ids, mask, pair.scenario_id) for ids, mask in sides)
    return chosen, rejected


def _sample(prompt: NDArray[np.int32], ids: NDArray[np.int32], mask: NDArray[np.bool_], place: str) -> Sample:
    from grpo.learner.batch import Sample

    tokens = np.concatenate([prompt, ids])
    zeros = np.zeros(len(tokens), np.float32)
    return Sample(
        token_ids=tokens,
        loss_mask=np.concatenate([np.zeros(len(prompt), np.bool_), mask]),
        sampler_logprobs=zeros,
        advantages=zeros,
        temperature=1.0,
        place=place,
    )


def preference_metrics(
    policy_logprobs: NDArray[np.float64], reference_logprobs: NDArray[np.float64], *, beta: float
) -> PreferenceMetrics:
    """Metrics from the log-probabilities of both replies, each [pairs, 2].

    The implicit reward of a reply is β log(π/π_ref). Ties count half, so a policy that equals the reference has reward
    accuracy 0.5 and margin 0.

        π (−1, −2), (−3, −2)    π_ref (−2, −2), (−3, −4)    β 0.5    margins 0.5, −1    reward accuracy 0.5
    """
    log_ratios = policy_logprobs - reference_logprobs
    margins = beta * (log_ratios[:, 0] - log_ratios[:, 1])
    return PreferenceMetrics(
        loss=float(np.logaddexp(0, -margins).mean()),
        margin=float(margins.mean()),
        reward_accuracy=_share_above_zero(margins),
        ranking_accuracy=_share_above_zero(policy_logprobs[:, 0] - policy_logprobs[:, 1]),
    )


def _share_above_zero(values: NDArray[np.float64]) -> float:
    return float(np.mean((np.sign(values) + 1) / 2))
