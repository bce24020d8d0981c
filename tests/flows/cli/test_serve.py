"""Settings of `grpo serve`, which `grpo up --serve` takes as well."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from grpo.config.loading import load_settings
from grpo.config.serving import ServeConfig
from grpo.errors import ConfigError
from grpo_cli.app import app
from grpo_cli.serve import serve_config
from grpo_local.serving import _text


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory and home of its own, and another port than the default."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GRPO_SERVE_PORT", "8123")
    return tmp_path


def test_a_model_is_short_for_a_file_with_that_model(folder: Path):
    """Both have the same defaults, and `--set` has the last word."""
    (folder / "serve.yaml").write_text("model: models:/desk@champion\nengine: {concurrency: 16}\n")
    changes = ["engine.concurrency=8", "service.consent=training"]
    short = serve_config("models:/desk@champion", changes)
    assert short == serve_config("serve.yaml", changes)
    assert (short.engine.concurrency, short.service.consent, short.body_bytes) == (8, "training", 4 * 2**20)
    assert serve_config("serve.yaml", None).engine.concurrency == 16


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ((), "service.consent and service.licence"),
        (("service.consent=training",), "service.licence"),
        (("service.licence=own",), "service.consent"),
        (("service.consent=training", "service.licence=own"), None),
    ],
)
def test_a_server_whose_conversations_no_retraining_may_use_says_so(changes: tuple[str, ...], missing: str | None):
    """A retraining rejects conversations without consent, and those without licence."""
    remark = serve_config("models:/desk@champion", changes).service.not_trained_on
    sentence = f"No retraining uses its conversations: set {missing} if the users have agreed"
    assert remark == (None if missing is None else sentence)


def test_the_port_is_given_by_the_option_the_settings_or_the_environment(folder: Path):
    """In this order. The server of `grpo up` inherits the environment, but its file decides."""
    (folder / "serve.yaml").write_text("{model: clerk, port: 9000}\n")
    assert serve_config("clerk", None).port == 8123
    assert serve_config("serve.yaml", None).port == 9000
    assert serve_config("serve.yaml", ["port=9001"], port=9002).port == 9002
    assert serve_config("clerk", None, host="0.0.0.0").host == "0.0.0.0"


def test_settings_of_a_served_model_keep_their_meaning_in_another_folder(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Paths of a file count from its folder, paths of options from the working folder."""
    (folder / "shop").mkdir()
    (folder / "shop" / "serve.yaml").write_text(
        "{model: ../clerk, keys: keys.json, tls: {certificate: c.pem, private_key: k.pem}}\n"
    )
    text = _text(serve_config("shop/serve.yaml", ["log=talks", "drain_s=7"]))
    monkeypatch.chdir("/")
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "serve.yaml").write_text(text)
    config = load_settings(folder / "elsewhere" / "serve.yaml", ServeConfig)
    assert config.tls is not None
    places = (config.model, config.keys, config.log, config.tls.certificate)
    names = ("clerk", "shop/keys.json", "talks", "shop/c.pem")
    assert [Path(place or "").resolve() for place in places] == [folder / name for name in names]
    assert (config.port, config.drain_s) == (8123, 7.0)


def test_the_reference_has_every_setting_and_loads(folder: Path):
    """The printed file is the default server, and each setting has its description."""
    result = CliRunner().invoke(app, ["serve", "--reference"])
    assert result.exit_code == 0
    assert set(yaml.safe_load(result.output)) == set(ServeConfig.model_fields)
    assert "# Turns that are generated at once." in result.output
    (folder / "serve.yaml").write_text(result.output)
    assert serve_config("serve.yaml", None) == serve_config("models:/support-desk@champion", None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["up", "--set", "drain_s=3"], "Name it with --serve"),
        (["up", "--deploymets", "x.yaml"], "No such option: --deploymets"),
        (["up", "--serve", "clerk", "--set", "engine.concurency=3"], "engine.concurency"),
        (["up", "--serve", "clerk", "--set", "engine.concurrency=0"], "engine.concurrency"),
        (["up", "--serve", "clerk", "--set", "tls.private_key=k.pem"], "tls.certificate"),
        (["up", "--serve", "clerk", "extra"], "unexpected extra argument"),
        (["serve"], "no model was named. Name one, e.g. models:/support-desk@champion"),
        (["serve", "none.yaml"], "no config at none.yaml"),
        (["serve", "clerk", "--port", "0"], "port"),
        (["serve", "clerk", "--set", "jwt={issuer: i, audience: a, algorithms: [RS256]}"], "key_file"),
    ],
)
def test_a_wrong_setting_ends_the_command_before_anything_starts(arguments: list[str], message: str, folder: Path):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert not (folder / "home" / "services").exists()


def test_a_port_of_the_environment_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRPO_SERVE_PORT", "http")
    with pytest.raises(ConfigError, match="port"):
        serve_config("clerk", None)
