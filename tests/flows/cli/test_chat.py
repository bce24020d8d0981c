from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from grpo.policy.transformers.model import load
from grpo_cli.app import app
from tests.places import ROOT


@pytest.fixture
def script(tmp_path: Path) -> str:
    """Address of a scripted model that replies first, second, first, second …"""
    path = tmp_path / "replies.yaml"
    path.write_text(yaml.safe_dump([["first"], ["second"]]))
    return f"stub://{path}"


def _evaluate(*arguments: str, lines: str = "") -> Result:
    return CliRunner().invoke(app, ["evaluate", *arguments], input=lines)


def test_one_message_gets_a_reply(script: str):
    """The reply and nothing else."""
    result = _evaluate("--checkpoint", script, "--message", "Hello")
    assert (result.exit_code, result.stdout) == (0, "first\n")


def test_lines_are_answered_until_they_end(script: str):
    """One reply a line; empty lines are skipped."""
    result = _evaluate("--checkpoint", script, lines="Hello\n\nAgain\nAnd again")
    assert (result.exit_code, result.stdout) == (0, "first\nsecond\nfirst\n")


@pytest.mark.parametrize("to_file", [True, False])
def test_each_conversation_of_a_file_gets_a_reply(script: str, tmp_path: Path, to_file: bool):
    """User messages and lists of messages, each with its reply."""
    asked = tmp_path / "asked.json"
    history = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]
    asked.write_text(json.dumps(["Hello", [*history, {"role": "user", "content": "Help"}]]))
    output = ["--output-file", str(tmp_path / "answered.json")] if to_file else []
    result = _evaluate("--checkpoint", script, "--input", str(asked), *output)
    assert result.exit_code == 0
    answered = json.loads((tmp_path / "answered.json").read_text() if to_file else result.stdout)
    assert answered == [
        {"messages": [{"role": "user", "content": "Hello"}], "reply": "first"},
        {"messages": [*history, {"role": "user", "content": "Help"}], "reply": "second"},
    ]


def test_calls_and_results_of_a_conversation_are_kept(script: str, tmp_path: Path):
    """An item may be a record of a fine-tuning file; it may end with the result of a call."""
    asked = tmp_path / "asked.json"
    call = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"order": "7"}'}}
    messages = [
        {"role": "user", "content": "Where is 7?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "lost"},
    ]
    asked.write_text(json.dumps([{"messages": messages}]))
    result = _evaluate("--checkpoint", script, "--input", str(asked))
    assert result.exit_code == 0
    [answered] = json.loads(result.stdout)
    (kept,) = answered["messages"][1]["tool_calls"]
    assert kept["function"] == {"name": "look_up", "arguments": {"order": "7"}}
    assert answered["messages"][2] == {"role": "tool", "content": "lost"}


@pytest.mark.parametrize(
    "content",
    ["{", "{}", "[]", "[1]", '[""]', '[[{"role": "user"}]]', '[[{"role": "assistant", "content": "a"}]]', "[[[]]]"],
)
def test_a_file_that_holds_no_conversations_is_wrong_input(script: str, tmp_path: Path, content: str):
    """Exit code 2, and the file is named."""
    asked = tmp_path / "asked.json"
    asked.write_text(content)
    result = _evaluate("--checkpoint", script, "--input", str(asked))
    assert result.exit_code == 2
    assert str(asked) in result.stderr


def test_a_model_folder_generates_by_its_options(tiny_folder: Path):
    """The token limit holds; greedy decoding repeats itself."""
    options = ["--set", "temperature=0", "--set", "max_new_tokens=5"]
    replies = {_evaluate("--checkpoint", str(tiny_folder), "--message", "Hello", *options).stdout for _ in range(2)}
    assert len(replies) == 1
    tokenizer = load(tiny_folder).tokenizer
    assert len(tokenizer(replies.pop().strip(), add_special_tokens=False)["input_ids"]) <= 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Name a CONFIG"),
        (
            ["config.yaml", "--checkpoint", "x", "--dry-run"],
            "--dry-run can be used only in a measurement, and --checkpoint starts a chat",
        ),
        (["--checkpoint", "x", "--scenario", "y"], "--scenario names a scenario of a CONFIG"),
        (["--checkpoint", "x", "--num-episodes", "3"], "--num-episodes can be used only in a measurement"),
        (["config.yaml", "--message", "x"], "--message can be used only in a chat. Add --checkpoint"),
        (["--checkpoint", "x", "--message", "x", "--input", "y"], "exclude each other"),
        (["--checkpoint", "nowhere"], "no model in nowhere"),
        (["--checkpoint", "moon://x"], "no policy has an address of the kind moon://"),
        (["--checkpoint", "stub://x.yaml", "--set", "temprature=1"], "temprature: Extra inputs are not permitted"),
    ],
)
def test_options_that_do_not_go_together_are_wrong_input(arguments: list[str], message: str):
    """Exit code 2, with their names."""
    result = _evaluate(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


QUICKSTART = str(ROOT / "data" / "configs" / "quickstart.yaml")
CALL = '<tool_call>{"name": "look_up", "arguments": {"order": "8945"}}</tool_call>'


def test_the_tools_of_a_config_answer_the_calls(tmp_path: Path):
    """The call acts on the world of the named scenario; calls and results stand beside the reply."""
    path = tmp_path / "calls.yaml"
    path.write_text(yaml.safe_dump([CALL, "It costs 28."]))
    arguments = (QUICKSTART, "--checkpoint", f"stub://{path}", "--scenario", "desk-00293")
    arguments += ("--set", "rollout.max_new_tokens=200", "--set", "rollout.max_context=4096")
    result = _evaluate(*arguments, "--message", "What does order 8945 cost?")
    assert (result.exit_code, result.stdout) == (0, "It costs 28.\n")
    assert 'call {"name": "look_up", "arguments": {"order": "8945"}}' in result.stderr
    assert 'result {"price": 28, "days": 30, "state": "delivered", "charges": 1}' in result.stderr
    assert _evaluate(*arguments, lines="One\n\nTwo\n").stdout == "It costs 28.\nIt costs 28.\n"


def test_a_call_that_no_tool_answers_is_named(tmp_path: Path):
    """Without a config the reply is the call itself, and stderr has the remedy."""
    path = tmp_path / "calls.yaml"
    path.write_text(yaml.safe_dump([CALL]))
    result = _evaluate("--checkpoint", f"stub://{path}", "--message", "Hello")
    assert (result.exit_code, result.stdout) == (0, f"{CALL}\n")
    assert "nothing answers the tool call" in result.stderr
    assert "Name a CONFIG" in result.stderr


@pytest.mark.parametrize(
    ("override", "message"),
    [("environment={kind: conversation}", "has no tools"), ("seed=7", "no scenario 'desk-none'")],
)
def test_a_config_without_tools_and_an_unknown_scenario_are_wrong_input(script: str, override: str, message: str):
    """Exit code 2, before a reply."""
    scenario = [] if "kind" in override else ["--scenario", "desk-none"]
    result = _evaluate(QUICKSTART, "--checkpoint", script, "--message", "Hi", "--set", override, *scenario)
    assert result.exit_code == 2
    assert message in result.stderr
