"""The agent: methods that change messages before the policy reads them, or replies after it has written them."""

from collections.abc import Sequence
from typing import Any

from grpo import MultiTurnAgent


class ShopAgent(MultiTurnAgent):
    """An agent that reads a customer's message without its line breaks."""

    async def process_turn(self, history: Sequence[Any], user_input: str, context: Any = None) -> str:
        """Reply to a user message."""
        return await super().process_turn(history, " ".join(user_input.split()), context)
