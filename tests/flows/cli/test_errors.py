"""How commands end: what they print of a fault."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from flows.cli.app import app
from tests.places import ROOT

CONFIGS = ROOT / "data" / "configs"
LOGIN = "me:s3cr3t%40x"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "arguments",
    [
        ("train", f"{CONFIGS}/quickstart.yaml", "--set", f"policy.model=openai+http://{LOGIN}@127.0.0.1:1/v1#m"),
        ("train", f"{CONFIGS}/quickstart.yaml", "--set", f"reward.0.options={{model: 'http://{LOGIN}@host/v1#m'}}"),
        ("train", f"{CONFIGS}/quickstart.yaml", "--set", f"rollout.dask_address=tcp://{LOGIN}@127.0.0.1:8786"),
        ("train", f"{CONFIGS}/quickstart.yaml", "--set", f"http://{LOGIN}@127.0.0.1"),
        ("evaluate", "--checkpoint", f"openai+http://{LOGIN}@127.0.0.1:1/v1#m", "--message", "hello"),
        ("tune", f"{CONFIGS}/tune.yaml", "--set", f"storage=postgresql://{LOGIN}@127.0.0.1:1/optuna"),
        ("doctor", "--store", f"s3://{LOGIN}@bucket/x"),
    ],
    ids=["model", "judge", "dask", "override", "checkpoint", "storage", "store"],
)
def test_an_address_with_a_password_is_refused_and_not_repeated(arguments: tuple[str, ...]):
    """Wherever it was given; nothing is started with it."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code in (1, 2), result.output
    assert "s3cr3t" not in result.output
    assert isinstance(result.exception, SystemExit), result.exception
