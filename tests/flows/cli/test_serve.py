"""Options of `grpo serve`, which `grpo up --serve` takes as well."""

from __future__ import annotations

from pathlib import Path

import pytest
from grpo_cli.app import app
from grpo_cli.serve import parse_served
from typer.testing import CliRunner


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory and home of its own, and another port than the default."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GRPO_SERVE_PORT", "8123")
    return tmp_path


def test_options_of_a_served_model_keep_their_meaning_in_another_folder(folder: Path):
    """Paths are made absolute, the port is that of the environment, and what was not given is left to `grpo serve`."""
    options = ["--jwt-algorithm", "RS256", "--jwt-algorithm=ES256", "--keys", "keys.json", "--drain-s", "7"]
    served = parse_served("models:/desk@champion", options)
    keys = str(folder / "keys.json")
    assert served.arguments[0] == "models:/desk@champion"
    assert {*zip(served.arguments[1::2], served.arguments[2::2], strict=True)} == {
        ("--jwt-algorithm", "RS256"), ("--jwt-algorithm", "ES256"), ("--keys", keys), ("--drain-s", "7.0"),
        ("--port", "8123"),
    }  # fmt: skip
    assert (served.host, served.port, served.tls, served.drain_s) == ("127.0.0.1", 8123, False, 7.0)
    assert parse_served("models:/desk@champion", ["--port", "9000"]).port == 9000
    (folder / "clerk").mkdir()
    assert parse_served("clerk", []).arguments[0] == str(folder / "clerk")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--consent", "training"], "grpo up has no --consent; options of grpo serve need --serve MODEL"),
        (["--deploymets", "x.yaml"], "grpo up has no --deploymets"),
        (["--serve", "clerk", "--concurency", "3"], "No such option: --concurency"),
        (["--serve", "clerk", "--concurrency", "0"], "Invalid value for '--concurrency'"),
        (["--serve", "clerk", "--tls-key", "k.pem"], "TLS needs both --tls-certificate and --tls-key"),
        (["--serve", "clerk", "extra"], "unexpected extra argument"),
    ],
)
def test_a_wrong_option_ends_the_command_before_anything_starts(arguments: list[str], message: str, folder: Path):
    result = CliRunner().invoke(app, ["up", *arguments])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert not (folder / "home" / "services").exists()
