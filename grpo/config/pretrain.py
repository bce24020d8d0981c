"""Settings of the shipped base model and scenario pack."""

from __future__ import annotations

from pydantic import Field

from grpo.config.base import Settings


class PretrainConfig(Settings):
    """Pretraining of a small chat model on demonstrations of mixed quality, and generation of its scenarios."""

    demonstration_phrasebook: str = "data/scenarios/phrasebook_demonstrations.yaml"
    """Phrasebook of the customers in the demonstrations. It shares no wording with scenario_phrasebook."""
    scenario_phrasebook: str = "data/scenarios/phrasebook_scenarios.yaml"
    """Phrasebook of the customers in the scenario pack."""
    scenarios_path: str = "data/scenarios/support_desk.jsonl"
    """Output file of the scenario pack."""
    demonstrations_path: str = "data/scenarios/support_desk_demonstrations.jsonl"
    """Output file of the demonstrations that succeeded, for the supervised fine-tuning of other models."""
    model_path: str = "data/models/desk_clerk"
    """Output folder of the base model."""
    scenarios: int = Field(default=864, ge=1)
    """Scenarios in the pack."""
    written_demonstrations: int = Field(default=192, ge=1)
    """Demonstrations that are written to demonstrations_path."""
    demonstrations: int = Field(default=80_000, ge=1)
    """Demonstrations that the base model is trained on."""
    vocab_size: int = Field(default=768, ge=300)
    """Tokens of the tokenizer."""
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
    """Fixed parts of the desk's JSON, one token each: conversations are a third shorter."""
    hidden_size: int = 160
    """Width of the hidden states."""
    num_hidden_layers: int = 4
    """Transformer layers."""
    num_attention_heads: int = 4
    """Attention heads of a layer."""
    num_key_value_heads: int = 2
    """Key-value heads (grouped-query attention), each shared by `num_attention_heads / num_key_value_heads`."""
    intermediate_size: int = 432
    """Width of the MLP."""
    cycle_steps: tuple[int, ...] = Field(default=(3000, 1500), min_length=1)
    """Optimizer steps of each cycle of the learning rate (warm restarts): a restart may learn what the cycle before did
    not, such as copying a lone digit."""
    batch_size: int = Field(default=32, ge=1)
    """Demonstrations in an optimizer step."""
    learning_rate: float = Field(default=3e-3, gt=0)
    """Learning rate at the start of each cycle."""
    seed: int = 1
    """Seed of all random numbers."""
