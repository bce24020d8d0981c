"""Settings of `grpo serve`: the model, who may call it, the log, and every size of the server.

    model: models:/support-desk@champion
    service: {consent: training}
    engine: {concurrency: 16}

is a whole file. Secrets are not part of it: API keys are in the file `keys` as hashes, the key of JSON Web Tokens is in
a file or an environment variable, and the database that servers share is named by GRPO_SERVE_DATABASE.
"""

from __future__ import annotations

from typing import Self

from pydantic import ConfigDict, Field, model_validator

from grpo.config.base import LocalPlace, ModelAddress, Settings

BODY_BYTES = 4 * 2**20
REFUSED_BYTES = 16 * 2**20
"""Bytes of refused requests that one key may send in any 60 seconds."""
HEAD_S = 10.0
"""Time limit for the head of a request, and also for a TLS handshake."""


class EngineSettings(Settings):
    """Sizes of the engine of each version."""

    concurrency: int = Field(default=64, ge=1)
    """Turns that are generated at once."""
    prefill_chunk: int = Field(default=64, ge=1)
    """Prompt tokens of a conversation that are read in one forward pass."""
    prefix_cache_bytes: int = Field(default=2**30, ge=0)
    """Most memory for the keys and values of idle conversations."""
    threads: int | None = Field(default=None, ge=1)
    """Threads of a forward pass on the CPU. None uses all cores but one, which is left to the event loop."""
    longest_pass_s: float = Field(default=300.0, gt=0)
    """If a forward pass takes longer, its engine process counts as hung and is replaced."""
    longest_silence_s: float = Field(default=10.0, gt=0)
    """An engine process sends a heartbeat each second. If it is silent for longer, the server is not ready."""


class ServiceSettings(Settings):
    """Limits of the whole server, and the consent and licence that turns are logged with."""

    max_requests: int = Field(default=256, ge=1)
    """Most turns that run or wait. A turn above it gets 503."""
    max_tokens: int = Field(default=1_000_000, ge=1)
    """Most tokens of all running and waiting turns, conversations and replies together. A turn above it gets 503."""
    conversation_tokens: int = Field(default=2_000_000, ge=1)
    """Most tokens of the conversations in memory."""
    stream_interval_s: float = Field(default=0.04, ge=0)
    """Shortest time between two events of a streamed reply. Tokens that come in this time share one event."""
    waiting_characters: int = Field(default=16 * 2**20, ge=1)
    """Characters of requests that may wait to be read. One key may have half of them. Requests above it get 503."""
    socket_idle_s: float = Field(default=600.0, gt=0)
    """Time after which a WebSocket without a request is closed."""
    consent: str = ""
    """Use that users agreed to, for example `training`, logged with each turn. Empty for none."""
    licence: str = ""
    """Licence of the conversations, logged with each turn."""

    @property
    def not_trained_on(self) -> str | None:
        """Sentence that says why no retraining uses the conversations. None if a retraining may allow them."""
        missing = [f"service.{name}" for name in ("consent", "licence") if not getattr(self, name)]
        if not missing:
            return None
        return f"No retraining uses its conversations: set {' and '.join(missing)} if the users have agreed"


class MirrorSettings(Settings):
    """Mirror of the log in MLflow, with personal data redacted."""

    experiment: str = Field(min_length=1)
    """MLflow experiment that shows the conversations."""
    outcomes: bool = False
    """Read assessments `success` too, so that people who can log in to the tracking server decide what succeeded."""
    every_s: float = Field(default=2.0, gt=0)
    """Interval at which the log is read."""
    feedback_s: float = Field(default=30.0, gt=0)
    """Interval at which assessments are read."""


class RolloutServingSettings(Settings):
    """Rollouts of trainings, which upload weights with a key of the scope `rollout`."""

    weights_bytes: int = Field(default=16 * 2**30, ge=1)
    """Most bytes of uploaded weights on disk."""


class CallerLimits(Settings):
    """Limits of one caller. None means unlimited."""

    model_config = ConfigDict(strict=True)

    requests_per_minute: int | None = Field(default=None, ge=1)
    """Requests admitted in any 60 seconds."""
    tokens_per_minute: int | None = Field(default=None, ge=1)
    """Prompt and completion tokens of the requests admitted in any 60 seconds."""
    parallel: int | None = Field(default=None, ge=1)
    """Requests that run at once."""
    tokens_per_day: int | None = Field(default=None, ge=1)
    """Token budget of a day in UTC, which survives a restart."""
    tokens_per_month: int | None = Field(default=None, ge=1)
    """Token budget of a calendar month in UTC, which survives a restart."""


class TokenSettings(Settings):
    """JSON Web Tokens of an issuer, which are accepted as well as API keys."""

    issuer: str = Field(min_length=1)
    """Value of the claim `iss`."""
    audience: str = Field(min_length=1)
    """Value of the claim `aud`."""
    algorithms: tuple[str, ...] = Field(min_length=1)
    """Algorithms that are accepted, for example RS256."""
    key_file: LocalPlace | None = None
    """File with the public key (PEM) or the shared secret."""
    key_variable: str | None = None
    """Environment variable with that key."""
    limits: CallerLimits = CallerLimits()
    """Limits of each subject. API keys have limits of their own, see `grpo keys create`."""

    @model_validator(mode="after")
    def _has_one_key(self) -> Self:
        if bool(self.key_file) == bool(self.key_variable):
            raise ValueError("the key of tokens comes from key_file or from key_variable. Name one of the two")
        return self


class TLSSettings(Settings):
    """Certificate of a server that answers over HTTPS."""

    certificate: LocalPlace
    """Certificate, PEM."""
    private_key: LocalPlace
    """Private key of the certificate, PEM."""


class ServerSettings(Settings):
    """Address, bounds and parts of a server, whatever model it serves."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8000, ge=1, le=65535)
    """Port to listen on."""
    tls: TLSSettings | None = None
    """Certificate for HTTPS. None serves plain HTTP."""
    retention_days: int | None = Field(default=None, ge=1)
    """Days after which turns are erased. None keeps them."""
    body_bytes: int = Field(default=BODY_BYTES, ge=1024)
    """Maximum bytes of a request's body."""
    frame_bytes: int = Field(default=BODY_BYTES, ge=1024)
    """Maximum bytes of a decompressed WebSocket message. A longer one closes the connection."""
    refused_bytes: int = Field(default=REFUSED_BYTES, ge=65536)
    """Bytes of refused requests that one key may send per minute. Above it, requests get 429 before they are read."""
    connections: int | None = Field(default=None, ge=16)
    """Maximum number of connections. None takes what the limit of open files allows, up to 8192."""
    connections_per_address: int | None = Field(default=None, ge=8)
    """Maximum number of connections from one address. None is half of all."""
    head_s: float = Field(default=HEAD_S, gt=0)
    """Time within which the head of a request must be complete."""
    watch_s: float = Field(default=5.0, gt=0)
    """Interval between two looks for a new version."""
    jobs_s: float = Field(default=2.0, gt=0)
    """Interval between two looks at training runs, while a client listens to events."""
    drain_s: float = Field(default=60.0, ge=0)
    """Time that running turns get to end when the server stops."""
    engine: EngineSettings = EngineSettings()
    service: ServiceSettings = ServiceSettings()
    mirror: MirrorSettings | None = None
    """Mirror of the log in MLflow. None mirrors nothing."""
    rollouts: RolloutServingSettings | None = None
    """Generate rollouts of trainings as well. None takes no weights and no rollouts."""


class ServeConfig(ServerSettings):
    """Server of one model by OpenAI's chat API."""

    model: ModelAddress
    """Model to serve: `models:/NAME@champion`, a model folder, `org/name` or a GGUF file."""
    follow_alias: bool = False
    """Serve the version that the alias champion names, even if it was moved by hand and not promoted."""
    keys: LocalPlace | None = None
    """File of the API keys. None is `keys.json` in GRPO_HOME."""
    log: LocalPlace | None = None
    """Folder of the conversations. None is `served` in GRPO_HOME."""
    jwt: TokenSettings | None = None
    """Issuer of JSON Web Tokens, which are then accepted as well as keys. None accepts only keys."""
