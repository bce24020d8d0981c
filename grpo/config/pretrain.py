"""How the embedded base model and scenario pack are made."""

from __future__ import annotations

from pydantic import Field

from grpo.config.base import Settings


class PretrainConfig(Settings):
    """A small chat model from demonstrations of mixed quality, and the scenarios that it is then trained on."""

    demonstration_phrasebook: str = "data/scenarios/phrasebook_demonstrations.yaml"
    """Phrasebook of the customers in the demonstrations; shares no wording with the other one."""
    scenario_phrasebook: str = "data/scenarios/phrasebook_scenarios.yaml"
    """Phrasebook of the customers in the scenario pack."""
    scenarios_path: str = "data/scenarios/support_desk.jsonl"
    """Where the scenario pack is written."""
    model_path: str = "data/models/desk_clerk"
    """Where the base model is written."""
    scenarios: int = Field(default=864, ge=1)
    """Scenarios in the pack."""
    demonstrations: int = Field(default=80_000, ge=1)
    """Conversations that the base model is made from."""
    vocab_size: int = Field(default=768, ge=300)
    """Tokens of its tokenizer."""
    phrases: tuple[str, ...] = (
        *(f'{{"name": "{tool}", "arguments": {{"order": "' for tool in ("look_up", "refund", "replace", "escalate")),
        '", "amount": ',
        '"}}',
        "}}",
        '{"price": ',
        ', "days": ',
        ', "state": "',
        '", "charges": ',
        ', "eta": ',
        '{"done": "',
        '{"error": "',
        '"}',
    )
    """Fixed parts of the desk's JSON, one token each: conversations get a third shorter."""
    hidden_size: int = 160
    """Width of its layers."""
    num_hidden_layers: int = 4
    """Its layers."""
    num_attention_heads: int = 4
    """Attention heads of a layer."""
    num_key_value_heads: int = 2
    """Heads of keys and values, each shared by `heads / num_key_value_heads`."""
    intermediate_size: int = 432
    """Width of the layers between."""
    cycle_steps: tuple[int, ...] = Field(default=(3000, 1500), min_length=1)
    """Optimizer steps of each cycle of the learning rate, which falls and begins again: what one has not found, such as
    copying a lone digit, the next may."""
    batch_size: int = Field(default=32, ge=1)
    """Conversations in an optimizer step."""
    learning_rate: float = Field(default=3e-3, gt=0)
    """Where each cycle begins."""
    seed: int = 1
    """Every random number follows from it."""
