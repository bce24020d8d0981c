"""Requests and replies between a rollout and its servers: weights by digest, turns as token ids.

    PUT  /v1/rollout/files/SHA256    one file of a model, refused unless its bytes have this digest
    POST /v1/rollout/weights         WeightsRequest → WeightsReply: load these files, or name those that are missing
    POST /v1/rollout/turns           TurnRequest → TurnReply: generate one turn with a loaded version

A `grpo serve` with the setting `rollouts` answers them, see `grpo.serving.engine.rollouts`, and a `vllm serve`, see
`grpo.serving.vllm_server.rollouts`. Token ids go in and come out, so that no text is tokenized twice.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from grpo.config.base import LEAST_TEMPERATURE

PREFIX = "/v1/rollout"
FILES, WEIGHTS, TURNS = f"{PREFIX}/files", f"{PREFIX}/weights", f"{PREFIX}/turns"
MOST_FILES = 64
"""Most files of one model."""
SUFFIXES = (".safetensors", ".json", ".jinja", ".txt")
"""Files that a server takes: safetensors weights, config and tokenizer. Never pickles or code."""
_NAME_CHARACTERS = 120


def is_model_file(name: str) -> bool:
    """True for a name that a server takes: a file of `SUFFIXES`, in no folder and not hidden."""
    plain = name.isascii() and name.isprintable() and not name.startswith(".") and not set(name) & set("/\\")
    return plain and len(name) <= _NAME_CHARACTERS and name.endswith(SUFFIXES)


def _model_file(name: str) -> str:
    if not is_model_file(name):
        raise ValueError(f"a file of a model is named NAME{', NAME'.join(SUFFIXES)}, without a folder")
    return name


TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Version = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
"""Policy version: the hash of the weights, see `Policy.hash`."""
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""sha256 of a file."""
Files = Annotated[dict[Annotated[str, AfterValidator(_model_file)], Digest], Field(max_length=MOST_FILES)]
"""sha256 of each file of a folder, by its name."""


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class WeightsRequest(_Body):
    """Files of a policy version. The server loads them if it has all of them."""

    version: Version
    """Hash that the loaded weights must have."""
    files: Files
    base: Files = Field(default_factory=dict)
    """Files of the base model, if `files` are adapters."""


class WeightsReply(_Body):
    """Version that is loaded, or the files that the server needs first."""

    version: Version | None
    """Hash of the loaded weights, which the server has computed itself. None while files are missing."""
    missing: tuple[Digest, ...] = ()
    max_context: int | None = None
    """Tokens of the longest conversation that the server reads with this version."""


class TurnRequest(_Body):
    """One turn of a conversation.

    Its random numbers depend only on `seed` and `turn`, so that the same request gives the same tokens on each server
    that has the weights.
    """

    version: Version
    token_ids: Annotated[tuple[TokenId, ...], Field(min_length=1)]
    """All tokens of the conversation so far."""
    stop_token_ids: Annotated[tuple[TokenId, ...], Field(max_length=64)]
    """Tokens that end the turn."""
    temperature: float = Field(ge=LEAST_TEMPERATURE)
    max_new_tokens: int = Field(ge=1, lt=2**31)
    seed: int = Field(ge=0, lt=2**63)
    """Seed of the episode."""
    turn: int = Field(ge=0, lt=2**31)
    """Turns of the episode before this one."""


class TurnReply(_Body):
    """Generated tokens of one turn."""

    version: str
    """Hash of the weights that have generated it."""
    token_ids: tuple[TokenId, ...]
    """The stop token is included."""
    logprobs: tuple[float, ...]
    """Log-probability of each token at the temperature of the request."""
    stop: Literal["stop", "length"]
    cached_tokens: int = 0
    """Tokens of the conversation that the server did not read again."""
