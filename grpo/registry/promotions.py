"""Which versions of a model have served, one after the other; promotion and rollback.

MLflow moves one alias in one transaction, and that is all it guarantees: no two writes are one, and none asks what
the value was. So a change is written down before it is made, and the alias `champion` is what decides:

    1  tag  succession.pending    what is to be done
    2  alias champion             done: from here on the new version serves
    3  alias previous             where a rollback goes
    4  tag  succession.0007       the record
    5  pending goes

The next change settles what was begun: before step 2 it is undone, after it finished. One change at a time is a lock
on this machine; for several machines a flow holds Prefect's lock beside it. Who only reads takes no lock and settles
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from grpo.errors import AddressError, NothingToRollBack, PromotionRefused, RegistryError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion, RegisteredModel

CANDIDATE, CHAMPION, PREVIOUS = "candidate", "champion", "previous"
_RECORD, _PENDING = "succession.", "succession.pending"

LONGEST_REASON = 1000
Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=LONGEST_REASON)]
"""Why a version serves; a tag of MLflow holds it with the rest of the record."""


class Actor(BaseModel):
    """Who asks for a change."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    user: str
    host: str
    run: str | None = None
    """Flow run."""


class ChampionChange(BaseModel):
    """One change of the version in service."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    number: int
    action: Literal["promote", "rollback"]
    champion: int
    """The version that serves from now on."""
    replaced: int | None
    """The version that served until now."""
    previous: int | None
    """Where a rollback would go from now on."""
    reason: Reason
    by: Actor
    at: str
    """UTC, ISO 8601."""
    forced: bool = False
    """Against a verdict or another rule."""
    checks: dict[str, float | None] = Field(default_factory=dict)
    """The numbers of the gates."""


class PromotionState(BaseModel):
    """What is written down of a model's changes at one moment."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    champion: int | None
    """The version in service."""
    history: tuple[ChampionChange, ...]
    """Every promotion and rollback that has ended, the first one first."""
    pending: ChampionChange | None
    """A change that is under way, or that was cut off and is settled by the next one."""


class PromotionLog:
    """The versions of one model that have served, in order."""

    def __init__(self, client: MlflowClient, model: str, lock: AbstractContextManager[object]) -> None:
        self._client = client
        self._model = model
        self._lock = lock

    def state(self) -> PromotionState:
        """Who serves, what has changed so far, and what is being changed; nothing is waited for or written."""
        model = self._model_now()
        history, pending = _history(model), _pending(model)
        if pending is not None and pending.number <= len(history):  # between steps 4 and 5
            pending = None
        return PromotionState(champion=_alias(model, CHAMPION), history=history, pending=pending)

    def history(self) -> tuple[ChampionChange, ...]:
        """Every promotion and rollback that has ended, the first one first."""
        return self.state().history

    def promote(
        self,
        version: int,
        *,
        reason: str,
        by: Actor,
        force: bool = False,
        checks: dict[str, float | None] | None = None,
        verify: Callable[[int], None] | None = None,
    ) -> ChampionChange | None:
        """Let a version serve; None where it does so already. `verify` raises for a version whose files are damaged.

        Raises `PromotionRefused` for a version that did not pass its gates, that was judged against another version
        than the one in service, or that has served before, and while a champion is missing that there was: `force`
        overrides and is recorded.
        """
        with self._lock:
            model, _ = self._settled()
            chosen = self._version(version)
            serving = _alias(model, CHAMPION)
            if serving == version:
                return None
            history = _history(model)
            refusal = self._refusal_reason(chosen, serving, history)
            if refusal and not force:
                raise PromotionRefused(f"{refusal}; --force with a reason promotes it all the same")
            previous = serving
            if serving is None and history:
                previous = _before(version, [*champion_stack(history), version], self._existing_versions())
            change = ChampionChange(
                number=len(history) + 1,
                action="promote",
                champion=version,
                replaced=serving,
                previous=previous,
                reason=reason,
                by=by,
                at=_now(),
                forced=bool(refusal),
                checks=checks or {},
            )
            if verify is not None:
                verify(version)
            self._begin(change)
            return change

    def rollback(self, *, reason: str, by: Actor, verify: Callable[[int], None] | None = None) -> ChampionChange:
        """Let the version serve again that the champion has replaced.

        `previous` then names the one before it: versions 1, 2, 3 rolled back twice leave 1 in service. A version that
        was deleted is passed over, and a champion that was deleted is replaced. What one flow run asks for is done
        once, however often it is put back. Raises `NothingToRollBack` when there is no version to go back to.
        """
        with self._lock:
            model, finished = self._settled()
            history = _history(model)
            if (done := _done_before(history, finished, reason, by)) is not None:
                return done
            serving = _alias(model, CHAMPION)
            if serving is None and not history:
                raise NothingToRollBack(f"model {self._model} has no champion, so there is nothing to roll back")
            last, living = serving or history[-1].champion, self._existing_versions()
            target = _alias(model, PREVIOUS)
            if target not in living:
                target = _before(last, champion_stack(history), living)
            if target is None:
                raise NothingToRollBack(
                    f"model {self._model} has no version before {last} to go back to; promote one by its number"
                )
            change = ChampionChange(
                number=len(history) + 1,
                action="rollback",
                champion=target,
                replaced=serving,
                previous=_before(target, champion_stack(history), living),
                reason=reason,
                by=by,
                at=_now(),
            )
            if verify is not None:
                verify(target)
            self._begin(change)
            return change

    def _refusal_reason(
        self, chosen: ModelVersion, serving: int | None, history: tuple[ChampionChange, ...]
    ) -> str | None:
        """Why a version may not serve, if it may not."""
        name = f"{self._model} version {chosen.version}"
        verdict = chosen.tags.get("verdict")
        if verdict != "promote":
            return f"{name} was judged {verdict!r}; only a version that passed its gates may serve"
        served = [one for one in history if int(chosen.version) in (one.champion, one.replaced)]
        if served:
            last = served[-1]
            return f"{name} has served before, until a {last.action} to version {last.champion} ({last.reason})"
        if serving is not None:
            champion = self._version(serving)
            if chosen.tags.get("champion_sha256") != champion.tags.get("checkpoint_sha256"):
                return f"{name} was judged against another policy than that of version {serving}, which serves now"
        elif history:
            return missing_champion(self._model)
        return None

    def _version(self, version: int) -> ModelVersion:
        from mlflow.exceptions import MlflowException

        try:
            return self._client.get_model_version(self._model, str(version))
        except MlflowException as error:
            if is_absent(error):
                raise AddressError(f"model {self._model} has no version {version}") from error
            raise

    def _existing_versions(self) -> set[int]:
        """Versions that nobody has deleted."""
        return {int(one.version) for one in self._client.search_model_versions(f"name = '{self._model}'")}

    def _settled(self) -> tuple[RegisteredModel, ChampionChange | None]:
        """The model, and the change that was finished for it where one was left half done.

        One whose version had not begun to serve is undone.
        """
        model = self._model_now()
        if (pending := _pending(model)) is None:
            return model, None
        if _alias(model, CHAMPION) == pending.champion:
            self._finish(pending)
            return self._model_now(), pending
        self._client.delete_registered_model_tag(self._model, _PENDING)
        return self._model_now(), None

    def _model_now(self) -> RegisteredModel:
        from mlflow.exceptions import MlflowException

        try:
            return self._client.get_registered_model(self._model)
        except MlflowException as error:
            if is_absent(error):
                raise AddressError(f"no model {self._model} is registered; a run registers it when it ends") from error
            raise

    def _begin(self, change: ChampionChange) -> None:
        """Write down what is to be done, and do it."""
        text = change.model_dump_json()
        self._client.set_registered_model_tag(self._model, _PENDING, text)
        if self._model_now().tags.get(_PENDING) != text:
            raise RegistryError(f"another promotion of model {self._model} is under way; try again")
        self._client.set_registered_model_alias(self._model, CHAMPION, str(change.champion))
        self._finish(change)

    def _finish(self, change: ChampionChange) -> None:
        """What follows once the champion is set; done twice, it is done once."""
        if change.previous not in self._existing_versions():
            self._client.delete_registered_model_alias(self._model, PREVIOUS)
        else:
            self._client.set_registered_model_alias(self._model, PREVIOUS, str(change.previous))
        key = f"{_RECORD}{change.number:04}"
        self._client.set_registered_model_tag(self._model, key, change.model_dump_json())
        self._client.delete_registered_model_tag(self._model, _PENDING)


def missing_champion(model: str) -> str:
    """What to do where a model has had a champion and has none."""
    return (
        f"model {model} has had a champion and has none now: the version or its alias was deleted; "
        f"`grpo rollback models:/{model}@champion --reason WHY` lets the version before it serve, "
        f"`grpo promote models:/{model}/N --reason WHY --force` another one, "
        "and another registry.model_name begins anew"
    )


def champion_stack(history: tuple[ChampionChange, ...]) -> list[int]:
    """Versions below and with the champion: a promotion puts one on top, a rollback takes the top away.

    promote 1, 2, 3 → 1 2 3      rollback → 1 2      promote 4 → 1 2 4
    """
    stack: list[int] = []
    for one in history:
        if one.action == "promote":
            if one.replaced is not None and one.replaced not in stack[-1:]:  # put there by hand
                stack.append(one.replaced)
            stack.append(one.champion)
            continue
        while stack and stack[-1] != one.champion:
            stack.pop()
        stack = stack or [one.champion]
    return stack


def _before(version: int, stack: list[int], living: set[int]) -> int | None:
    """The version below `version` in what stands, deleted ones passed over."""
    stack = list(stack)
    while stack and stack.pop() != version:
        pass
    return next((below for below in reversed(stack) if below in living and below != version), None)


def _done_before(
    history: tuple[ChampionChange, ...], finished: ChampionChange | None, reason: str, by: Actor
) -> ChampionChange | None:
    """The rollback that this very request has brought about already, before its process died.

    A flow run asks once. A command that is typed again is another flow run: it means what was left half done, by the
    same person for the same reason, and a second rollback where the first one had ended.
    """
    for one in reversed(history):
        if one.action == "rollback" and by.run is not None and one.by.run == by.run:
            return one
    if finished is None or finished.action != "rollback":
        return None
    asked, before = (by.user, by.host, reason), (finished.by.user, finished.by.host, finished.reason)
    return finished if asked == before else None


def is_absent(error: Exception) -> bool:
    """Whether MLflow says that something does not exist, and not that it cannot be asked."""
    code, text = getattr(error, "error_code", ""), str(error)
    return code == "RESOURCE_DOES_NOT_EXIST" or (code == "INVALID_PARAMETER_VALUE" and "not found" in text)


def _history(model: RegisteredModel) -> tuple[ChampionChange, ...]:
    keys = sorted(key for key in model.tags if key.startswith(_RECORD) and key != _PENDING)
    return tuple(ChampionChange.model_validate_json(model.tags[key]) for key in keys)


def _pending(model: RegisteredModel) -> ChampionChange | None:
    text = model.tags.get(_PENDING)
    return None if text is None else ChampionChange.model_validate_json(text)


def _alias(model: RegisteredModel, name: str) -> int | None:
    found = model.aliases.get(name)
    return None if found is None else int(found)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
