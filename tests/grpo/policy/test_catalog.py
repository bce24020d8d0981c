from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from grpo.config.pipeline import PolicySettings
from grpo.errors import PolicyError, install_command
from grpo.policy.catalog import open_policy
from grpo.policy.openai import ChatPolicy, CompletionsPolicy
from grpo.policy.scripted import ScriptedPolicy
from grpo.policy.transformers.model import load
from grpo_tasks.load_base import load_base
from tests.places import ROOT


def test_each_kind_of_address_opens_its_backend(tiny_folder: Path, tmp_path: Path):
    """A folder, a script, and both endpoints of a server."""
    (tmp_path / "replies.yaml").write_text("[Hello.]")
    assert open_policy(tiny_folder).hash == load(tiny_folder).hash
    assert open_policy(f"stub://{tmp_path}/replies.yaml").hash == ScriptedPolicy(["Hello."]).hash
    chat = open_policy("openai+https://api.example/v1/#large")
    assert isinstance(chat, ChatPolicy)
    assert (chat.endpoint.base_url, chat.endpoint.model) == ("https://api.example/v1", "large")
    tokens = open_policy("openai-tokens+http://localhost:8000/v1#clerk", policy_hash="0123456789abcdef")
    assert isinstance(tokens, CompletionsPolicy)
    assert tokens.hash == "0123456789abcdef"


def test_the_hash_of_a_server_depends_on_its_model():
    """The address identifies the version, because the weights are unknown."""
    first, same, other = (open_policy(f"openai+http://localhost/v1#{name}").hash for name in ("a", "a", "b"))
    assert first == same != other


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("shop://bucket/model", "no policy has an address of the kind shop://"),
        ("openai+ftp://host/v1#m", r"of the kind openai\+ftp://"),
        ("openai+http://host/v1", "names no model"),
        ("openai+http:///v1#m", r"expected http\(s\)://host"),
        ("openai+http://host/v1?key=abc#m", r"expected http\(s\)://host"),
        ("openai+http://user:abc@host/v1#m", "Put the key into OPENAI_API_KEY"),
    ],
)
def test_an_invalid_address_is_refused_with_the_reason(address: str, problem: str):
    """Without repeating a possible secret."""
    with pytest.raises(PolicyError, match=problem) as error_info:
        open_policy(address)
    assert "abc" not in str(error_info.value)


@pytest.mark.parametrize("model", ["stub://replies.yaml", "openai+http://localhost/v1#m", "vllm://data/models/desk"])
def test_an_untrainable_policy_ends_the_run_before_it_is_opened(model: str, tmp_path: Path):
    """Nothing is read, requested or stored."""
    with pytest.raises(PolicyError, match="can be evaluated, not trained"):
        load_base.fn(policy=PolicySettings(model=model), content="", store=str(tmp_path / "store"))
    assert not list(tmp_path.iterdir())


def test_a_scripted_policy_needs_no_torch(tmp_path: Path):
    """Neither does the rollout stage."""
    (tmp_path / "replies.yaml").write_text("[Hello.]")
    code = (
        "import sys; from grpo.policy.catalog import open_policy; import grpo.rollout.collect; "
        "open_policy('stub://replies.yaml'); "
        "print([name for name in ('torch', 'transformers', 'openai') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    ("package", "module"), [("openai", "grpo.policy.openai_endpoint"), ("vllm", "grpo.policy.vllm")]
)
def test_a_backend_that_is_not_installed_names_its_extra(package: str, module: str, monkeypatch: pytest.MonkeyPatch):
    """One error message, wherever it is imported."""
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.delitem(sys.modules, "grpo.policy.openai", raising=False)
    address = {"openai": "openai+http://localhost/v1#m", "vllm": "vllm://data/models/desk_clerk"}[package]
    with pytest.raises(
        PolicyError, match=re.escape(f"package {package} is not installed. Call {install_command(package)}")
    ):
        open_policy(address)
