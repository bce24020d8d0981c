"""Dialogue strategies: paragraphs of the system prompt by strategy, and by the stage or level of the conversation.

The prompt names strategy and stage or level, so every recorded conversation shows them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo.errors import ConfigError
from grpo.messages import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationStage:
    """Stage of a conversation: the user cues that start it, and guidance for the agent."""

    name: str
    guidance: str
    cues: re.Pattern[str] | None = None
    """Pattern in a user message that starts the stage, or None for the first stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """Dialogue strategy for a kind of conversation."""

    id: str
    prompt: str
    stages: tuple[ConversationStage, ...] = ()
    """Stages in order. A conversation may skip some, but never goes back."""
    levels: Mapping[str, str] = field(default_factory=dict)
    """Guidance by the user's level of knowledge, `level` in the context."""


def _cues(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE)


SALES_STAGES = (
    ConversationStage(name="awareness", guidance="Ask what they need before you name a product."),
    ConversationStage(
        name="interest",
        guidance="Show which of their needs a product meets, and by what. Name no price yet.",
        cues=_cues(r"tell me more|how does|what does|which one|features?|looking for|interested|do you have"),
    ),
    ConversationStage(
        name="consideration",
        guidance="Compare honestly, price included. Answer doubts with facts, and say what it does not do.",
        cues=_cues(r"price|prices|cost|costs|how much|expensive|compare[ds]?|difference|versus|vs|discount|warranty"),
    ),
    ConversationStage(
        name="decision",
        guidance="Make the next step easy: say what happens now and what it costs. Do not press.",
        cues=_cues(r"(?:i'll|i will|i'd like to|want to) (?:take|buy|order|get)|sign me up|check ?out|where do i pay"),
    ),
)

STRATEGIES = {
    strategy.id: strategy
    for strategy in (
        Strategy(
            id="customer_service",
            prompt="Show that you understood the trouble in one sentence, then solve it. Ask only for what you need, "
            "promise only what you can do, and end with what happens next.",
        ),
        Strategy(
            id="technical_support",
            prompt="Find the cause step by step: one check at a time, numbered, the likeliest and cheapest first. Wait "
            "for what the user saw before the next step, and never repeat a step that was done.",
        ),
        Strategy(
            id="educational",
            prompt="Let the learner do the thinking: build on what they said, explain one idea at a time, and end with "
            "a question that shows whether it was understood.",
            levels={
                "beginner": "Use everyday words and one small example; explain each term when it first comes up.",
                "intermediate": "Assume the basics; show how the ideas are connected and where they fail.",
                "expert": "Be brief and exact; use the terms of the field, and name limits and sources.",
            },
        ),
        Strategy(
            id="sales",
            prompt="Help the customer to a decision that they will still like next week; what does not fit is not "
            "offered.",
            stages=SALES_STAGES,
        ),
    )
}

STRATEGY_BY_TASK = {
    "customer_support": "customer_service",
    "tech_help": "technical_support",
    "sales_chat": "sales",
    "tutoring": "educational",
}
"""Strategy of each task."""


def current_stage(strategy: Strategy, messages: Sequence[Message]) -> ConversationStage | None:
    """Furthest stage that user messages have reached, or None if the strategy has no stages."""
    if not strategy.stages:
        return None
    texts = [message.content for message in messages if message.role == "user"]
    reached = [s for s in strategy.stages if s.cues is not None and any(s.cues.search(text) for text in texts)]
    return reached[-1] if reached else strategy.stages[0]


def strategy_prompt(name: str, messages: Sequence[Message], context: Mapping[str, Any]) -> str:
    """Paragraph of the system prompt for this point of a conversation.

    Raises `ConfigError` for an unknown strategy or level.
    """
    strategy = STRATEGIES.get(name)
    if strategy is None:
        raise ConfigError(f"strategy {name!r} is unknown. Use one of {', '.join(STRATEGIES)}")
    stage = current_stage(strategy, messages)
    if stage is not None:
        return f"Strategy {name}, stage {stage.name}. {strategy.prompt} {stage.guidance}"
    if strategy.levels:
        level = context.get("level", "intermediate")
        if level not in strategy.levels:
            raise ConfigError(f"level {level!r} of strategy {name} is unknown. Use one of {', '.join(strategy.levels)}")
        return f"Strategy {name}, level {level}. {strategy.prompt} {strategy.levels[level]}"
    return f"Strategy {name}. {strategy.prompt}"
