"""Settings of agents: prompt and strategy, and for serving also model, sampling and memory."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from grpo.config.base import AppliesWhen, Settings
from grpo.config.python_object import PythonObject
from grpo.config.renderer import RendererSettings

STUB = "stub://"
_COMPRESSED = AppliesWhen("enable_context_compression")

StrategyName = Literal["customer_service", "technical_support", "educational", "sales"]


class AgentSettings(Settings):
    """Agent around a policy, in training and in service. `rollout` has the sampling settings of the training."""

    system_prompt: str = ""
    """System prompt, put before the system message of the environment or the caller."""
    strategy: StrategyName | None = None
    """Dialogue strategy, see `grpo.agents.strategies`."""
    enable_reasoning: bool = False
    """Remove <think>…</think> from the reply. The policy is still trained on its tokens."""


class PythonAgentSettings(AgentSettings, PythonObject):
    """Agent of your own: a subclass of `grpo.MultiTurnAgent`, called with its `AgentConfig` and the options."""

    group = "grpo.agents"


AnyAgentSettings = AgentSettings | PythonAgentSettings
"""Agent of this package, or of your own."""


class AgentConfig(AgentSettings):
    """Agent with its model, sampling and conversation memory."""

    model_name: str | None = None
    """Model folder, `org/name`, `file.gguf`, `models:/name@alias` or another address of `open_policy`. None if the
    agent is given a policy."""
    renderer: RendererSettings | None = None
    """Renderer of your own. None renders with the chat template of the model."""
    max_new_tokens: int = Field(default=512, ge=1)
    """Most tokens of one reply."""
    max_context: int | None = Field(default=None, ge=16)
    """Most tokens of conversation and reply together. None is the policy's context length."""
    temperature: float = Field(default=0.7, ge=0)
    """Sampling temperature. 0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling: probability mass of the tokens that are sampled from."""
    top_k: int = Field(default=0, ge=0)
    """Sample only from this many likeliest tokens. 0 samples from all."""
    seed: int = Field(default=0, ge=0)
    """Reply k is sampled with seed + k."""
    torch_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of a model in this process."""
    attn_implementation: Literal["sdpa", "flash_attention_2"] = "sdpa"
    """Attention of a model in this process. Falls back to sdpa with a log line."""
    device_map: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of a model in this process. auto is the accelerator if there is one."""
    use_stub_model: bool = False
    """Reply with `stub_responses` in turn, without a model."""
    stub_responses: tuple[str, ...] = ()
    """Replies of the stub model."""
    memory_window: int | None = Field(default=None, ge=1)
    """Number of last messages that the policy gets after the system prompt. None is all."""
    enable_context_compression: bool = False
    """Compress a conversation if it does not fit into max_context. Otherwise it is refused."""
    compression_ratio: Annotated[float, _COMPRESSED] = Field(default=0.5, gt=0, lt=1)
    """Share of the tokens that compression keeps."""
    compression_strategy: Annotated[Literal["truncate", "sliding_window", "summary"], _COMPRESSED] = "truncate"
    """Drop the oldest messages, drop the oldest exchanges, or replace these exchanges by a summary."""

    @property
    def is_stub(self) -> bool:
        """True for an agent with fixed replies."""
        return self.use_stub_model or bool(self.stub_responses)

    @field_validator("model_name")
    @classmethod
    def _model_name_is_not_empty(cls, name: str | None) -> str | None:
        if name is not None and not name.strip():
            raise ValueError("model_name is empty. Name a model folder or an address")
        return name

    @model_validator(mode="after")
    def _stub_has_responses(self) -> Self:
        if self.use_stub_model and not self.stub_responses:
            raise ValueError("use_stub_model needs stub_responses: a list of replies")
        if self.stub_responses and not self.use_stub_model and not (self.model_name or "").startswith(STUB):
            raise ValueError(
                f"stub_responses have no effect with model {self.model_name!r}. Set use_stub_model or model_name stub://…"
            )
        return self
