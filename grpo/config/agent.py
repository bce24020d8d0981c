"""How an agent speaks when it serves: its model, its prompt, how it samples and what it remembers of a conversation."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from grpo.config.base import Settings

STUB = "stub://"

StrategyName = Literal["customer_service", "technical_support", "educational", "sales"]


class AgentSettings(Settings):
    """What makes an agent of a policy, in training as in service; how rollouts sample is for `rollout` to say."""

    system_prompt: str = ""
    """Stands before what the environment or the caller says in a system message."""
    strategy: StrategyName | None = None
    """Pattern of the dialogue, see `grpo.agents.strategies`."""
    enable_reasoning: bool = False
    """Split what stands in <think>…</think> off the reply; its tokens are trained on all the same."""


class AgentConfig(AgentSettings):
    """A whole agent: also its model, how it samples when it is asked, and what it remembers of a conversation."""

    model_name: str | None = None
    """Model folder or another address that `open_policy` knows; None where a policy is handed to the agent."""
    max_new_tokens: int = Field(default=512, ge=1)
    """Most tokens in one reply."""
    max_context: int | None = Field(default=None, ge=16)
    """Most tokens of conversation and reply together; None is what the policy can read."""
    temperature: float = Field(default=0.7, ge=0)
    """0 takes the likeliest token."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Share of the probability that is drawn from, likeliest tokens first."""
    top_k: int = Field(default=0, ge=0)
    """How many of the likeliest tokens are drawn from; 0 is all."""
    seed: int = Field(default=0, ge=0)
    """Reply k draws its random numbers from seed + k."""
    torch_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Numbers that a model in this process computes with."""
    attn_implementation: Literal["sdpa", "flash_attention_2"] = "sdpa"
    """Attention of a model in this process; what it cannot have is logged, and sdpa is taken."""
    device_map: Literal["auto", "cpu", "cuda"] = "auto"
    """Where a model in this process lies; auto is the accelerator if there is one."""
    use_stub_model: bool = False
    """Say `stub_responses` in turn, without a model."""
    stub_responses: tuple[str, ...] = ()
    memory_window: int | None = Field(default=None, ge=1)
    """Messages that the policy sees besides the system prompt, the last ones; None is all."""
    enable_context_compression: bool = False
    """Compress a conversation that does not fit into max_context; else it is refused."""
    compression_ratio: float = Field(default=0.5, gt=0, lt=1)
    """Share of the tokens that compression leaves."""
    compression_strategy: Literal["truncate", "sliding_window", "summary"] = "truncate"
    """Drop the oldest messages, whole exchanges, or whole exchanges with a summary in their place."""

    @property
    def is_stub(self) -> bool:
        """Whether replies are written down here."""
        return self.use_stub_model or bool(self.stub_responses)

    @field_validator("model_name")
    @classmethod
    def _model_is_named(cls, name: str | None) -> str | None:
        if name is not None and not name.strip():
            raise ValueError("model_name is empty; name a model folder or an address")
        return name

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        if self.use_stub_model and not self.stub_responses:
            raise ValueError("use_stub_model needs stub_responses: a list of texts to say")
        if self.stub_responses and not self.use_stub_model and not (self.model_name or "").startswith(STUB):
            raise ValueError(
                f"stub_responses are not said by model {self.model_name!r}; set use_stub_model or model_name stub://…"
            )
        for name in ("compression_ratio", "compression_strategy"):
            if not self.enable_context_compression and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is not read without enable_context_compression; set it or leave {name} out")
        return self
