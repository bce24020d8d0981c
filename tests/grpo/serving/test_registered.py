"""Registered versions behind a real server, from a real MLflow store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from grpo.environments.support_desk.desk import SupportDesk
from grpo.errors import AddressError
from grpo.messages import Message
from grpo.policy.renderer import make_renderer
from grpo.policy.transformers.model import load_tokenizer
from grpo.serving.registered import fixed_model, watched_version
from grpo_tasks.registry import registry
from tests.grpo.registry.test_served_agent import registered
from tests.grpo.serving.chat_servers import CLERK, chat_server

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow warns of its own internals
QUESTION = "Where is my parcel?"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with an empty registry."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return tmp_path


def test_a_champion_reads_what_it_read_in_rollouts_and_its_successor_takes_over(home: Path, tiny_folder: Path):
    """The prompt of the first turn is that of the environment, its tools and the user; then the alias moves."""
    first = registered(home, tiny_folder, rollout={"max_new_tokens": 9})
    models = registry()
    models.client.set_registered_model_alias(first.name, "champion", str(first.version))
    address = f"models:/{first.name}@champion"
    with chat_server(home, watched_version(models, address)) as server:
        client = server.client()
        reply = client.chat.completions.create(model=first.name, messages=[{"role": "user", "content": QUESTION}])
        (turn,) = server.turns()
        version = server.service.versions.current
        assert version is not None
        renderer = make_renderer(version.served.policy.tokenizer, tools=SupportDesk.tools)  # type: ignore[attr-defined]
        prompt = renderer.build_prompt(
            [Message(role="system", content=SupportDesk.system_prompt), Message(role="user", content=QUESTION)]
        )
        assert turn.token_ids.tolist()[: len(prompt)] == prompt
        assert turn.model == f"{first.name}/{first.version}"
        assert reply.usage is not None
        assert reply.usage.completion_tokens <= 9
        second = registered(home, CLERK)
        models.client.set_registered_model_alias(first.name, "champion", str(second.version))
        for _ in range(3000):
            if server.service.versions.swaps:
                break
            server.wait(0.01)
        client.chat.completions.create(model=first.name, messages=[{"role": "user", "content": QUESTION}])
        assert server.turns()[-1].model == f"{first.name}/{second.version}"


def test_a_version_is_loaded_once(home: Path, tiny_folder: Path):
    version = registered(home, tiny_folder)
    following = watched_version(registry(), version.address)
    served = following("")
    assert served is not None
    assert following(served.version) is None
    with pytest.raises(AddressError, match="no model at"):
        watched_version(registry(), f"models:/{version.name}@champion")("")


def test_a_model_folder_is_served_as_it_is():
    following = fixed_model(str(CLERK), "clerk")
    served = following("")
    assert served is not None
    assert (served.version, served.tools, served.system_prompt) == ("clerk", (), "")
    assert following("clerk") is None


def test_the_server_itself_needs_no_pytorch(tmp_path: Path):
    """It is imported by the engine processes, which have the models: a server takes a third of the memory."""
    script = (
        "import sys\n"
        "import grpo.serving.server, grpo.serving.mirror, grpo_flows.local.training_jobs, grpo_tasks.registry\n"
        "from grpo.serving.registered import fixed_model\n"
        "served = fixed_model(sys.argv[1], 'clerk')('')\n"
        "print(served.policy.tokenizer.vocab_size, 'torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(CLERK)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(load_tokenizer(CLERK).vocab_size), "False"]
