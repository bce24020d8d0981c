"""What is named instead of a model folder, and the way to one."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo.errors import PolicyError
from grpo.policy.catalog import model_folder, open_policy
from grpo.policy.model_files import check_model_files
from tests.places import DESK_MODEL

HUB = "Qwen/Qwen3-0.6B"


def test_a_model_folder_is_taken_as_it_is():
    """Config, weights and tokenizer are there."""
    assert check_model_files(DESK_MODEL) == DESK_MODEL == model_folder(str(DESK_MODEL))


@pytest.mark.parametrize("ask", [model_folder, open_policy], ids=["to train", "to talk to"])
def test_a_name_on_a_hub_says_that_nothing_is_fetched_and_what_to_do(ask: object):
    """The network is not blamed, because none is used."""
    with pytest.raises(
        PolicyError, match=f"nothing is fetched here; .*hf download {HUB} --local-dir models/Qwen3-0.6B"
    ):
        ask(HUB)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("files", "named", "reason"),
    [
        ({"m/q4.gguf": b"GGUF"}, "m/q4.gguf", "is GGUF, weights for llama.cpp"),
        ({"m/q4.gguf": b"GGUF"}, "m", "is GGUF, weights for llama.cpp"),
        ({}, "m/n/o", "there is no such folder"),
        ({"m": b""}, "m", "it is a file"),
        ({"m/x": b""}, "m", "config.json is missing"),
        ({"m/config.json": b"{"}, "m", "config.json is not JSON"),
        ({"m/config.json": b"[]"}, "m", "holds list, not an object"),
        ({"m/config.json": b"{}", "m/pytorch_model.bin": b""}, "m", "pickled weights are refused"),
    ],
)
def test_a_folder_without_a_model_is_refused_with_the_reason(
    tmp_path: Path, files: dict[str, bytes], named: str, reason: str
):
    """Each kind in its own words, with the place."""
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with pytest.raises(PolicyError, match=f"{named}.*{reason}"):
        check_model_files(tmp_path / named)


def test_a_name_that_no_file_can_have_is_not_a_folder():
    """Longer than a file system holds."""
    with pytest.raises(PolicyError, match="there is no such folder"):
        check_model_files(Path("x" * 300))
