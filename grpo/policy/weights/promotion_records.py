"""Records of promotions and rollbacks, which decide which version of a model is in service.

    tag promotion.0007    {"document": {"model": "support-desk", "created": 17…, "change": {"number": 7, …}}, "mac": …}

The last signed record names the champion. The aliases `champion` and `previous` follow the records, for people and for
other clients of MLflow. If an alias names another version, it was moved by hand, or the process was killed between
the two writes. If a record is not signed, was changed, or was copied from another number or model, it is listed but not
trusted. Neither is one from another registry, or from a model of the same name that was deleted, because a record names
the time at which the registered model was made. MLflow sets that time, and its API cannot change it. If a record is
missing in the middle, that is an error. Removing the last records leaves no trace in the registry and would bring an
earlier champion back, so each home keeps the highest number that it has seen. If a model with promotions is deleted,
the next run would have no champion to beat, so each home also keeps when the model was made.
"""

from __future__ import annotations

import getpass
import hashlib
import re
import socket
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError

from grpo.errors import AddressError, RegistryError, SignatureError
from grpo.storage.documents import Document
from grpo.storage.files import storage_errors, write_atomically
from grpo.storage.home import home
from grpo.storage.locks import file_lock
from grpo.storage.signing import Unverified, key_name, sign, verify

if TYPE_CHECKING:
    from pathlib import Path

    from mlflow import MlflowClient
    from mlflow.entities.model_registry import RegisteredModel

CANDIDATE, CHAMPION, PREVIOUS = "candidate", "champion", "previous"
_KEY = re.compile(r"promotion\.([0-9]{4,9})")
_KIND = "promotion"
_MOST_CHARACTERS = 5000
"""Longest tag of a registered model in MLflow's tables. PostgreSQL refuses a longer one, but SQLite does not."""

LONGEST_REASON = 1000
Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=LONGEST_REASON)]
"""Reason of a change. Its length is limited because one MLflow tag holds the whole record."""


class Actor(Document):
    """Author of a change."""

    user: str
    host: str
    run: str | None = None
    """Flow run."""

    @classmethod
    def here(cls, run: str | None = None) -> Actor:
        """The user of this process."""
        return cls(user=getpass.getuser(), host=socket.gethostname(), run=run)


class ChampionChange(Document):
    """Record of one promotion or rollback."""

    number: int
    action: Literal["promote", "rollback"]
    champion: int
    """Version in service after the change."""
    content: str
    """Digest of that version, see `ModelVersion.content`."""
    replaced: int | None
    """Version in service before the change."""
    previous: int | None
    """Target of a rollback after the change."""
    reason: Reason
    by: Actor
    at: str
    """UTC, ISO 8601."""
    forced: bool = False
    """Promoted against a failed gate or another rule."""
    checks: dict[str, float | None] = Field(default_factory=dict)
    """Values of the gates."""


class PromotionState(Document):
    """Champion and change records of a model at one moment."""

    model: str
    created: int
    """Time at which the model was registered, in milliseconds. A model that is deleted and made again has another."""
    champion: int | None
    """Version in service by the last signed record. None before the first record, or if the version was deleted."""
    history: tuple[ChampionChange, ...]
    """Signed changes, oldest first."""
    alias: int | None
    """Version that the alias `champion` names."""
    unsigned: tuple[int, ...]
    """Numbers of the records that are not trusted."""

    @property
    def moved(self) -> str | None:
        """One sentence if the alias `champion` does not name the version that was promoted, else None."""
        deleted = self.history[-1].champion if self.champion is None and self.history else None
        if self.alias == self.champion:
            return None if deleted is None else f"version {deleted} of {self.model}, the champion, was deleted"
        names = "was removed" if self.alias is None else f"was moved by hand to version {self.alias}"
        if self.champion is None:
            promoted = (
                "no version of it was promoted" if deleted is None else "the version that was promoted was deleted"
            )
            return f"the alias champion of {self.model} {names}, and {promoted}"
        back = f"`grpo promote models:/{self.model}/{self.champion} --reason WHY` puts it back"
        if self.alias is not None:
            back += f", `grpo promote models:/{self.model}/{self.alias} --reason WHY` promotes it"
        return f"the alias champion of {self.model} {names}. Version {self.champion} was promoted: {back}"


def promotion_state(client: MlflowClient, model: str) -> PromotionState:
    """Read the promotions of a model. Raises `AddressError` if it is missing, and the errors of `state_of`."""
    return state_of(client, registered_model(client, model))


def registered_model(client: MlflowClient, model: str) -> RegisteredModel:
    """Model with its tags and aliases. Raises `AddressError` if it is missing, and `SignatureError` if it was deleted.

    This home notices the deletion if it has seen a promotion of the model.
    """
    from mlflow.exceptions import MlflowException

    try:
        registered = client.get_registered_model(model)
    except MlflowException as error:
        if is_absent(error):
            _check_same(client.tracking_uri, model, None)
            raise AddressError(
                f"no model {model} is registered. `grpo models` lists the registered ones. A run of `grpo train` "
                "registers its model when it ends"
            ) from error
        raise
    _check_same(client.tracking_uri, model, registered.creation_timestamp)
    return registered


def state_of(client: MlflowClient, model: RegisteredModel) -> PromotionState:
    """Promotions of a model, from its tags. Raises `SignatureError` if records were removed."""
    history, unsigned = [], []
    for key in sorted(filter(_is_record, model.tags), key=_number):
        change = _verified(model, key)
        if change is None:
            unsigned.append(_number(key))
        else:
            history.append(change)
    _check_complete(model, [change.number for change in history], unsigned)
    alias = alias_of(model, CHAMPION)
    champion = history[-1].champion if history else None
    if champion is not None and champion != alias and not _exists(client, model.name, champion):
        champion = None
    return PromotionState(
        model=model.name,
        created=model.creation_timestamp,
        champion=champion,
        history=tuple(history),
        alias=alias,
        unsigned=tuple(unsigned),
    )


def write_record(client: MlflowClient, model: str, change: ChampionChange) -> str:
    """Write a signed record as a tag of the model, and return its text. Raises `RegistryError` if it is too long."""
    created = registered_model(client, model).creation_timestamp
    text = sign(_KIND, {"model": model, "created": created, "change": change.model_dump(mode="json")})
    if len(text) > _MOST_CHARACTERS:
        raise RegistryError(
            f"the record of the change of {model} has {len(text):,} characters, {len(change.reason):,} of them the "
            f"reason and {len(change.checks)} gates with their values, but MLflow stores at most "
            f"{_MOST_CHARACTERS:,}: shorten the reason, or the names of the gates"
        )
    client.set_registered_model_tag(model, record_key(change.number), text)
    return text


def record_key(number: int) -> str:
    """Tag of a record."""
    return f"promotion.{number:04}"


def next_number(state: PromotionState) -> int:
    """Number of the next record. It skips numbers of unsigned records, so that no record is replaced."""
    number = state.history[-1].number + 1 if state.history else 1
    while number in state.unsigned:
        number += 1
    return number


def alias_of(model: RegisteredModel, name: str) -> int | None:
    """Version that an alias names, or None if the model does not have this alias."""
    version = model.aliases.get(name)
    return None if version is None else int(version)


def missing_champion(client: MlflowClient, state: PromotionState) -> RegistryError:
    """Error, with remedies, for a champion that was deleted, or for an alias without a signed promotion."""
    model = state.model
    if not state.history:
        records = ", because its records are not signed" if state.unsigned else ""
        return SignatureError(
            f"the alias champion of {model} names version {state.alias}, and no promotion of {model} is signed"
            f"{records}: `grpo promote models:/{model}/{state.alias} --reason WHY` promotes it, and shows what it "
            "needs. If it should not be champion, remove the alias in MLflow"
        )
    previous, restores = state.history[-1].previous, ""
    if previous is not None and _exists(client, model, previous):
        restores = f"`grpo rollback models:/{model}@champion --reason WHY` restores the version before it, "
    return RegistryError(
        f"model {model} had a champion and has none now, because the version was deleted. "
        f"{restores}`grpo promote models:/{model}/N --reason WHY --force` promotes another one, "
        "and another registry.model_name starts without a champion"
    )


def is_absent(error: Exception) -> bool:
    """Distinguish an MLflow error about a missing object from one about the connection."""
    code, text = getattr(error, "error_code", ""), str(error)
    return code == "RESOURCE_DOES_NOT_EXIST" or (code == "INVALID_PARAMETER_VALUE" and "not found" in text)


def remember(tracking_uri: str, model: str, created: int, number: int, *, wait_s: float = -1) -> None:
    """Keep the number of a record, and when its model was made, so that this home notices if they are removed.

    Raises `StorageError` if the home may not be written, or if another process holds its lock for longer than `wait_s`
    seconds. With −1 this process waits without a limit.
    """
    for file, value in ((_made_file(tracking_uri, model), created), (_seen_file(model, created), number)):
        if value <= _seen(file):
            continue
        with storage_errors(str(file)), file_lock(file.with_suffix(".lock")).acquire(timeout=wait_s):
            if value > _seen(file):
                write_atomically(file, f"{value}\n", mode=0o600)


def _verified(model: RegisteredModel, key: str) -> ChampionChange | None:
    """Change in a record, or None if the record is not trusted. Records of earlier releases name no time."""
    try:
        document = verify(_KIND, model.tags[key])
        change = ChampionChange.model_validate(document["change"])
    except (Unverified, ValidationError, KeyError):
        return None
    created = document.get("created", model.creation_timestamp)
    is_its_own = document["model"] == model.name and created == model.creation_timestamp
    return change if is_its_own and change.number == _number(key) else None


def _check_complete(model: RegisteredModel, signed: list[int], unsigned: list[int]) -> None:
    """Raise `SignatureError` if a record before the last one is missing, or the last one that this home has seen."""
    last, present = signed[-1] if signed else 0, {*signed, *unsigned}
    missing = next((number for number in range(1, last) if number not in present), None)
    file = _seen_file(model.name, model.creation_timestamp)
    remedy = "Restore the tags of the model in MLflow"
    if missing is None and (seen := _seen(file)) > last:
        missing, remedy = seen, f"{remedy}, or remove {file} if an earlier state was restored on purpose"
    if missing is not None:
        raise SignatureError(
            f"the record {record_key(missing)} of model {model.name} was removed or changed, so an earlier champion "
            f"would come back. {remedy}"
        )


def _check_same(tracking_uri: str, model: str, created: int | None) -> None:
    """Raise `SignatureError` if a model with promotions was deleted. `created` is None if there is none now."""
    file = _made_file(tracking_uri, model)
    if (seen := _seen(file)) and seen != created:
        again = "" if created is None else " and made again"
        raise SignatureError(
            f"model {model} was deleted{again} in MLflow, with its promotions, so that a run would have no champion to "
            f"beat. Restore MLflow's database from a backup, or remove {file} if the model was deleted on purpose"
        )


def _made_file(tracking_uri: str, model: str) -> Path:
    """File of the time at which a model was made. It leaves out the path of the home's own registry, which may move."""
    registry = "" if tracking_uri == f"sqlite:///{home()}/mlflow.db" else tracking_uri
    digest = hashlib.sha256(f"{registry} {model} {key_name()}".encode()).hexdigest()[:20]
    return home() / "services" / "promotions" / f"{digest}.made"


def _seen_file(model: str, created: int) -> Path:
    """File of the highest number seen. It is the same at each address of a registry, e.g. if the home is moved."""
    digest = hashlib.sha256(f"{created} {model} {key_name()}".encode()).hexdigest()[:20]
    return home() / "services" / "promotions" / digest


def _seen(file: Path) -> int:
    try:
        return int(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except ValueError:
        raise SignatureError(
            f"the record {file} of the last promotion that this home has seen is damaged. Restore it from a backup, or "
            "remove it if you trust everyone who can write to MLflow"
        ) from None


def _is_record(key: str) -> bool:
    """True if `record_key` wrote the tag. It did not write `promotion.00007`, although its number is 7."""
    return _KEY.fullmatch(key) is not None and key == record_key(_number(key))


def _number(key: str) -> int:
    return int(key.removeprefix("promotion."))


def _exists(client: MlflowClient, model: str, version: int) -> bool:
    from mlflow.exceptions import MlflowException

    try:
        client.get_model_version(model, str(version))
    except MlflowException as error:
        if is_absent(error):
            return False
        raise
    return True
