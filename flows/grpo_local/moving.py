"""Records of a home that was moved, renamed or copied, brought to the new place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from grpo.errors import ConfigError
from grpo.storage.databases import exclusive
from grpo.storage.files import write_atomically
from grpo.storage.moved import missing_models, rewrite_places
from grpo_local.managed_process import recorded_services
from grpo_local.serving import served_file


def move_records(home: Path) -> Iterator[str]:
    """Change the records in a home to its present place. Yields texts about what was changed, and what is missing.

    Raises `ConfigError` if a process of this home runs, because that process still uses the old place.
    """
    require_stopped(home)
    database = home / "mlflow.db"
    with exclusive(f"sqlite:///{database}"):
        former = rewrite_places(database)
    if not former:
        yield f"nothing to do: the records in {home} name no earlier place of it"
        return
    _move_served(home, former)
    yield f"the records name {home} now, instead of {' and '.join(map(str, former))}"
    if missing := missing_models(database):
        yield (
            f"the files of {len(missing)} models are not in this home, such as {missing[0]}. Copy them from "
            f"{former[0] / 'mlartifacts'}"
        )


def require_stopped(home: Path) -> None:
    """Raise `ConfigError` if a process of this home runs, because it would go on in the old place."""
    if running := [name for name, process in recorded_services(home).items() if process is not None]:
        raise ConfigError(
            f"{' and '.join(running)} of this home still run, and would go on in the old place. Call grpo down first"
        )


def _move_served(home: Path, former: list[Path]) -> None:
    """Change the paths in the settings of the server that `grpo up` starts again."""
    file = served_file(home)
    if not file.exists():
        return
    text = file.read_text(encoding="utf-8")
    for place in former:
        text = text.replace(f"{place}/", f"{home}/")
    write_atomically(file, text)
