"""Demonstrations for supervised fine-tuning: conversations of a file, of a serving log, or of a function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.artifacts import local_path
from grpo.config.chats import ChatColumns
from grpo.config.sft import DemonstrationSettings, GeneratedDemonstrations, ServedDemonstrations
from grpo.environments.environment import Environment
from grpo.errors import DataError
from grpo.learner.offline.read_back import check_read_back
from grpo.learner.offline.training_lines import parse_record, read_lines
from grpo.messages import Message, Tool
from grpo.renderers.chat_template import Renderer
from grpo.scenarios.logged_chat import to_conversation
from grpo.scenarios.readers.chat_records import labels_of
from grpo.scenarios.readers.files.filled_nulls import without_filled_nulls
from grpo.scenarios.readers.messages.openai_fields import RECORD, left_out
from grpo.scenarios.readers.messages.openai_format import parse_message, parse_messages
from grpo.scenarios.readers.python_function import read_python
from grpo.scenarios.readers.served import join_served
from grpo.scenarios.served_tuning import Demonstrations, collect_demonstrations

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_FORM = '{"messages": [{"role": …, "content": …}, …]}'


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedDemonstration:
    """Token sequence of a conversation with its loss mask."""

    token_ids: NDArray[np.int32]  # [tokens]
    loss_mask: NDArray[np.bool_]  # [tokens] True for the agent's tokens
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.loss_mask):
            raise DataError(
                f"a demonstration has {len(self.token_ids)} tokens and a loss mask of {len(self.loss_mask)}"
            )
        if not self.loss_mask[1:].any():
            raise DataError("a demonstration without a token of the agent after its first token. Leave it out")


def next_token_loss(model: PreTrainedModel, demonstrations: Sequence[TokenizedDemonstration]) -> torch.Tensor:
    """Σ −log π(token) over the agent's tokens of demonstrations that fit into one pass, in nats."""
    from grpo.learner.logprobs import compute_logprobs

    return -compute_logprobs(model, demonstrations).logprobs.sum()


def read_demonstrations(source: DemonstrationSettings) -> list[tuple[Message, ...]]:
    """Read all demonstrations, in the order of the source.

    Raises `DataError` if the source is missing or empty, if a line or record is not a conversation, or if a
    conversation has no turn of the agent, and `ConfigError` if a function cannot be called. Conversations of a serving
    log that cannot be used are left out.
    """
    if isinstance(source, ServedDemonstrations):
        return [item.messages for item in read_served(source).used]
    if isinstance(source, GeneratedDemonstrations):
        conversations = list(_generate(source))
    else:
        path, setting = local_path(source.path), "sft.demonstrations.path"
        conversations = list(read_lines(path, _parse, noun="a conversation", form=_FORM, setting=setting))
    if not conversations:
        raise DataError(f"no demonstration in {source_place(source)}. Add some, or leave sft out")
    return conversations


def read_served(source: ServedDemonstrations) -> Demonstrations:
    """Demonstrations of a serving log. Raises `DataError` if it has none, with the reasons."""
    collected = collect_demonstrations(join_served(source), source)
    if not collected.used:
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(collected.rejected.items()))
        raise DataError(
            f"no demonstration in the serving log {source.path}: {counts or 'it has no conversation'}. Give feedback "
            "with success or corrections, allow more licences or consents, or leave sft out"
        )
    return collected


def source_place(source: DemonstrationSettings) -> str:
    """File, folder or function of demonstrations, for messages."""
    return source.reference if isinstance(source, GeneratedDemonstrations) else source.path


def _generate(source: GeneratedDemonstrations) -> Iterator[tuple[Message, ...]]:
    """Conversations that a function yields, in the form of a file's lines."""
    for record in read_python(source.reference, source.options):
        place = f"{record.source}, record {record.line}"
        if record.data is None:
            raise DataError(f"{place} is not a conversation ({record.problem}). Yield {_FORM}")
        yield parse_record(record.data, _parse, place=place, noun="a conversation", form=_FORM)


def with_system_prompt(conversation: Sequence[Message], system_prompt: str) -> tuple[Message, ...]:
    """The conversation with this system prompt, unless it has its own or the prompt is empty."""
    if conversation[0].role == "system" or not system_prompt:
        return tuple(conversation)
    return (Message(role="system", content=system_prompt), *conversation)


def with_agent_prompt(
    conversation: Sequence[Message], agent: MultiTurnAgent, environment: Environment
) -> tuple[Message, ...]:
    """The conversation with the agent's instructions and the environment's system prompt in front, as it is served.

    The agent gives its instructions before its first turn, as in an episode, so they depend on no later message.
    """
    replies = (position for position, message in enumerate(conversation) if message.role == "assistant")
    instructions = agent.instructions(conversation[: next(replies, None)], {})
    return with_system_prompt(conversation, "\n\n".join(filter(None, (*instructions, environment.system_prompt))))


def demonstration_tokens(
    conversation: Sequence[Message],
    *,
    agent: MultiTurnAgent,
    environment: Environment,
    renderer: Renderer,
    max_context: int,
    place: str,
) -> tuple[list[int], list[bool]]:
    """Token ids and loss mask of a conversation in the prompts of these episodes.

    Raises `DataError` if it exceeds the model's context, calls a tool that neither environment nor agent has, or does
    not read back as it was written.
    """
    messages = with_agent_prompt(conversation, agent, environment)
    _check_calls(messages, (*environment.tools, *agent.tools), place)
    for position, message in enumerate(messages):
        if message.role == "assistant":
            check_read_back(message, messages[:position], renderer, f"{place}: message {position}")
    ids, mask = renderer.tokenize_conversation(messages)
    if len(ids) > max_context:
        raise DataError(f"{place} has {len(ids)} tokens, but the model reads {max_context}. Shorten it or leave it out")
    return ids, mask


def _check_calls(messages: Sequence[Message], tools: Sequence[Tool], place: str) -> None:
    """Refuse calls of undeclared tools, unless none is declared: some environments state tools in each scenario."""
    unknown = {call.name for message in messages for call in message.tool_calls} - {tool.name for tool in tools}
    if tools and unknown:
        raise DataError(
            f"{place} calls {', '.join(sorted(unknown))}, which the prompt does not declare. Its tools are "
            f"{', '.join(tool.name for tool in tools)}: correct the call, or leave the demonstration out"
        )


def _parse(record: Any, place: str) -> tuple[Message, ...]:
    """Parse a conversation in OpenAI's format. `tools` is not read, because the prompt has the environment's tools."""
    record = without_filled_nulls(record)
    left_out(RECORD, record, "record", "")
    label = record.get("label")
    is_class = isinstance(label, int) and not isinstance(label, bool) and label >= 0  # 0 may be the name of a class
    labels = {name: value for name, value in record.items() if name != "label" or not is_class}
    if undesired := [name for name, desired in labels_of(labels, ChatColumns()).items() if not desired]:
        raise DataError(f"{undesired[0]} says that its reply is not desired. Leave the conversation out")
    logged = parse_messages(record["messages"])
    for number, message in enumerate(logged):
        if not message.weight:
            raise DataError(
                f"message {number} has weight 0, and the loss is on all turns of the agent. Leave the conversation out"
            )
        if message.role == "assistant" and not message.content.strip() and not message.tool_calls:
            raise DataError(f"message {number} of the assistant is empty. Leave the conversation out")
    system = parse_message({"role": "system", "content": record.get("system")}, 0)
    is_new = system.content.strip() and system.content not in (message.content for message in logged[:1])
    return _checked(to_conversation([system, *logged] if is_new else logged))


def _checked(conversation: tuple[Message, ...]) -> tuple[Message, ...]:
    roles = [message.role for message in conversation]
    opening = roles[: roles.index("assistant")] if "assistant" in roles else []
    if "user" not in opening:
        got = ", ".join(roles) or "no message"
        raise DataError(f"a demonstration needs a turn of the user and then one of the agent, got {got}")
    return conversation
