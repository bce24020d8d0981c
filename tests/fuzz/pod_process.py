"""A real server whose model repeats what it has read, so that ten of them fit on two cores.

    reply   3 9f1c02aa 5b77…      the third message of the user, a checksum of all tokens read, and the seed

A server of the same log and database continues a conversation with exactly the tokens that were logged if the checksum
is one of the logged tokens.
"""

from __future__ import annotations

import os
import sys
import zlib
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.agent import AgentConfig
from grpo.config.serving import ServerSettings
from grpo.messages import Message, Tool
from grpo.policy.policy import Generation, Prompt, Sampler, Sampling, SessionFactory
from grpo.policy.tokenizer import load_tokenizer
from grpo.renderers.chat_template import Renderer
from grpo.serving.access.guard import Authenticator
from grpo.serving.access.keys import KeyStore
from grpo.serving.engine.served_model import ServedModel
from grpo.serving.server import ServerPlaces, run_server
from tests.places import DESK_MODEL

MODEL = "echo"
WATCH_S = 1.0


def checksum(ids: Sequence[int]) -> str:
    """Checksum of tokens as a reply has it."""
    return f"{zlib.crc32(array('i', ids).tobytes()):08x}"


class EchoPolicy:
    """Policy whose reply is the number of the user's messages, a checksum of the tokens that it has read, the seed."""

    max_context = 100_000

    def __init__(self, version: int) -> None:
        self.hash = f"echo-{version}"
        self.tokenizer = load_tokenizer(DESK_MODEL)

    @asynccontextmanager
    async def sampler(self, *, concurrency: int, renderer: Renderer) -> AsyncIterator[Sampler]:
        """See `Policy.sampler`."""
        yield SessionFactory(partial(EchoSession, renderer))


class EchoSession:
    """One conversation."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """Reply with what was read."""
        asked = sum(message.role == "user" for message in prompt.messages)
        reply = Message(role="assistant", content=f"{asked} {checksum(prompt.new_ids)} {sampling.seed:x}")
        ids = self._renderer.encode_reply(reply, prompt.messages)
        return Generation(token_ids=ids, logprobs=[-0.125] * len(ids), stop="stop")

    def close(self) -> None:
        """No resource to release."""


class EchoVersions:
    """Look-up of the version that a file names; see `LoadsVersions`."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __call__(self, current: str) -> ServedModel | None:
        name = f"{MODEL}/{self._file.read_text(encoding='utf-8').strip()}"
        return None if name == current else self.load_version(name)

    def load_version(self, version: str) -> ServedModel:
        number = int(version.removeprefix(f"{MODEL}/"))
        agent = MultiTurnAgent(AgentConfig(model_name=MODEL))
        policy = EchoPolicy(number)
        agent.set_policy(policy)
        tools = (Tool(name=f"look_up_{number}", description="Tool of this version's environment."),)
        return ServedModel(model=MODEL, version=version, policy=policy, agent=agent, tools=tools, max_new_tokens=64)


def serve(folder: Path, port: int, database: str) -> None:
    """Serve until a signal. `folder` has the log, the keys and the file of the version, which all servers share."""
    os.environ["GRPO_HOME"] = str(folder)
    settings = ServerSettings(port=port, watch_s=WATCH_S, drain_s=10.0)
    places = ServerPlaces(log=folder / "log", budgets=folder / "budgets.db", database=database)
    run_server(settings, places, EchoVersions(folder / "version"), Authenticator(KeyStore(folder / "keys.json")))


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
