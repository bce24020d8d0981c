"""A reward in addition to the environment's success."""

from collections.abc import Sequence

from grpo import Message, RewardContext


def looked_up_first(turns: Sequence[Message], context: RewardContext) -> float:
    """1 if the first tool call is look_up: an order that is replaced should have been read."""
    calls = [call.name for turn in turns for call in turn.tool_calls]
    return float(calls[:1] == ["look_up"])


looked_up_first.probed = False  # because it scores calls, but the known exploits are replies
