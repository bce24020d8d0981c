"""Configs that a run used to refuse late: the rows of late_failures.yaml, written into a folder.

`python -m tests.late_failures` runs each of them without the checks and prints the stage at which it ends: the field
`stage` is what that printed at commit f7f2526, before there was a list of checks.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.doubles import changed, short_run
from tests.places import DESK_MODEL, ROOT


@dataclass(frozen=True, kw_only=True)
class LateFailure:
    """A short run of the desk with some sections changed; `{folder}` and `{name}` are those of its own folder."""

    name: str
    stage: str
    """Stage at which a run without the checks ended."""
    words: list[str]
    """Value, place and remedy in the message."""
    sections: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    prepare: str | None = None
    """Name of a function of this module that changes the registry or the environment."""


LATE_FAILURES = [
    LateFailure(**row) for row in yaml.safe_load((ROOT / "tests" / "late_failures.yaml").read_text(encoding="utf-8"))
]


def written(failure: LateFailure, folder: Path) -> dict[str, Any]:
    """The config of a row, with its files in this folder."""

    def filled(value: Any) -> Any:
        if isinstance(value, str):
            texts = {"{folder}": str(folder), "{name}": folder.name, "{desk}": str(DESK_MODEL)}
            for name, text in texts.items():
                value = value.replace(name, text)
            return value
        if isinstance(value, dict):
            return {key: filled(item) for key, item in value.items()}
        return [filled(item) for item in value] if isinstance(value, list) else value

    for name, content in failure.files.items():
        (folder / name).write_text(content, encoding="utf-8")
    config = changed(short_run(folder, name=f"late-{folder.name}"), **filled(dict(failure.sections)))
    if failure.files and "limit" not in failure.sections.get("scenarios", {}):  # its own scenarios are few
        config["scenarios"] = {**config["scenarios"], "limit": None}
    if failure.prepare is not None:
        PREPARE[failure.prepare](folder, config)
    return config


def _deleted_experiment(folder: Path, config: dict[str, Any]) -> None:
    from grpo_tasks.registry import registry

    models = registry()
    models.client.delete_experiment(models.experiment(config["registry"]["experiment"]))


def _champion_at(uri: str) -> Callable[[Path, dict[str, Any]], None]:
    """A champion whose checkpoint is said to be at this address, where nothing is."""

    def prepare(folder: Path, config: dict[str, Any]) -> None:
        from grpo.registry.promotions import Actor
        from grpo_tasks.registry import registry
        from tests.grpo.registry.making import put_version

        models, name = registry(), config["registry"]["model_name"]
        there = uri.replace("{folder}", str(folder))
        tags = {"checkpoint_uri": there, "checkpoint_sha256": "a" * 64}
        version = put_version(models, name, "a", against="base", **tags)
        models.promotions(name).promote(version, reason="gates", by=Actor(user="anna", host="desk"))

    return prepare


def _deleted_champion(folder: Path, config: dict[str, Any]) -> None:
    from grpo_tasks.registry import registry

    _champion_at("{folder}/store/checkpoint/" + "a" * 16)(folder, config)
    registry().client.delete_model_version(config["registry"]["model_name"], "1")


def _mlflow_away(folder: Path, config: dict[str, Any]) -> None:
    os.environ["MLFLOW_TRACKING_URI"] = "http://127.0.0.1:9"


def _champion_in_bfloat16(folder: Path, config: dict[str, Any]) -> None:
    """A promoted version whose provenance has the dtype of its run."""
    from grpo.registry.promotions import Actor
    from grpo_tasks.registry import registry
    from tests.grpo.registry.test_served_agent import registered

    _rollout_key(folder, config)
    version = registered(
        folder / f"champion-{folder.name}",
        DESK_MODEL,
        policy={"model": str(DESK_MODEL), "dtype": "bfloat16"},
        training={"importance_sampling_cap": 2.0},
    )
    config["registry"]["model_name"] = version.name
    registry().promotions(version.name).promote(
        version.version, reason="gates", by=Actor(user="anna", host="desk"), force=True
    )


def _rollout_key(folder: Path, config: dict[str, Any]) -> None:
    os.environ["GRPO_ROLLOUT_KEY"] = "a key of nobody"


def _long_demonstration(folder: Path, config: dict[str, Any]) -> None:
    chats = [_chat("Hello")] * 300 + [_chat("word " * 3000)]
    _write_lines(folder / "calls.jsonl", [{"messages": chat} for chat in chats])


def _long_pair(folder: Path, config: dict[str, Any]) -> None:
    chats = [_chat("Hello")] * 300 + [_chat("word " * 3000)]
    other = [{"role": "assistant", "content": "Go away"}]
    _write_lines(
        folder / "pairs.jsonl", [{"prompt": chat[:1], "chosen": chat[1:], "rejected": other} for chat in chats]
    )


def _chat(reply: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": reply}]


def _write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")


def _file_of_the_report(folder: Path, config: dict[str, Any]) -> None:
    from grpo.storage.home import home

    (home() / config["name"]).write_text("notes", encoding="utf-8")


PREPARE = {
    "champion_in_bfloat16": _champion_in_bfloat16,
    "file_of_the_report": _file_of_the_report,
    "long_demonstration": _long_demonstration,
    "long_pair": _long_pair,
    "rollout_key": _rollout_key,
    "deleted_experiment": _deleted_experiment,
    "deleted_champion": _deleted_champion,
    "missing_checkpoint": _champion_at("{folder}/store/checkpoint/" + "a" * 16),
    "mlflow_away": _mlflow_away,
}


def main() -> None:
    """Run each config, and print the last stage that began and the error."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--only", default="", help="a part of the names")
    options = parser.parse_args()
    os.environ.setdefault("GRPO_HOME", tempfile.mkdtemp(prefix="late-failures-"))
    from grpo_local import settings

    home = settings.apply()
    from grpo_local.servers import prefect_server

    with prefect_server(home):
        from grpo import progress
        from grpo.config.pipeline import PipelineConfig
        from grpo_flows.train import train

        tracking = os.environ["MLFLOW_TRACKING_URI"]
        for failure in LATE_FAILURES:
            if options.only not in failure.name:
                continue
            stages = ["no stage"]
            try:
                config = PipelineConfig.model_validate(written(failure, Path(tempfile.mkdtemp())))
                with progress.observed(lambda stage, *_, stages=stages: stages.append(stage)):
                    result = train(config)
                end = f"{result.decision.verdict}: {result.decision.reason}"
            except BaseException as error:  # noqa: BLE001 - whatever ends it is what is asked
                end = f"{type(error).__name__}: {error}"
            os.environ["MLFLOW_TRACKING_URI"] = tracking
            print(f"@ {failure.name} | {stages[-1]} | {' '.join(end.split())[:200]}", flush=True)


if __name__ == "__main__":
    main()
