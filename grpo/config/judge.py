"""How a judge is asked, and what that may cost."""

from __future__ import annotations

from pydantic import ConfigDict, Field, model_validator

from grpo.config.base import Settings
from grpo.storage.home import home


class JudgeSettings(Settings):
    """A language model that judges, for the reward `ruler` (beside its rubric and fallback) or the setting `judge`."""

    model_config = ConfigDict(hide_input_in_errors=True)  # somebody may have put the key itself here

    model: str
    """Address of the judge, as `openai+https://api.openai.com/v1#gpt-4.1`."""
    api_key_env: str = Field(default="OPENAI_API_KEY", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Name of the environment variable that holds the key; the key itself belongs nowhere else."""
    seed: int = 0
    """Draws, with the scenario's id, the order and the labels of the siblings."""
    temperature: float | None = Field(default=0.0, ge=0, le=2)
    """None for models that take no temperature."""
    max_completion_tokens: int = Field(default=4096, ge=16)
    """Most tokens of one answer of the judge."""
    max_chars: int = Field(default=12_000, ge=100)
    """Characters of one conversation, and of what all of them share, that the judge reads; the longest messages lose
    their middle until it fits."""
    concurrency: int = Field(default=8, ge=1)
    """Groups that are judged at the same time."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Seconds of silence after which a try is given up."""
    retries: int = Field(default=2, ge=0)
    """Further tries, after growing pauses with jitter or the `Retry-After` that the server asks for (two minutes at
    most), where a second try can help: dropped connections, time-outs, 408, 409, 429 and 5xx."""
    deadline_s: float = Field(default=300.0, gt=0)
    """Seconds that one question may take, with all tries and pauses."""
    failure_threshold: int = Field(default=5, ge=1)
    """Questions in a row without an answer after which the judge is left alone."""
    cooldown_s: float = Field(default=60.0, gt=0)
    """Seconds for which it is left alone."""
    folder: str = Field(default_factory=lambda: str(home() / "judge"))
    """Folder of the answers, which are not asked for twice, and of the ledger; by default `judge` in GRPO_HOME."""
    prompt_price: float | None = Field(default=None, ge=0)
    """Price of a million tokens that the judge reads, in any one currency."""
    completion_price: float | None = Field(default=None, ge=0)
    """Price of a million tokens that the judge writes."""
    budget_tokens: int | None = Field(default=None, ge=1)
    """Tokens that the ledger of this folder may hold; once they are spent, nothing more is asked."""
    budget_cost: float | None = Field(default=None, gt=0)
    """Money that the ledger of this folder may hold, in the currency of the prices."""

    @model_validator(mode="after")
    def _check_prices(self) -> JudgeSettings:
        if (self.prompt_price is None) != (self.completion_price is None):
            raise ValueError("prompt_price and completion_price go together; give both")
        if self.budget_cost is not None and self.prompt_price is None:
            raise ValueError(f"budget_cost {self.budget_cost} needs prompt_price and completion_price")
        return self
