"""Which versions of a model have served, one after the other; promotion and rollback.

MLflow moves one alias in one transaction, and that is all it guarantees: no two writes are one, and none asks what
the value was. So a change is written down before it is made, and the alias `champion` is what decides:

    1  tag  succession.pending    what is to be done
    2  alias champion             done: from here on the new version serves
    3  alias previous             where a rollback goes
    4  tag  succession.0007       the record
    5  pending goes

Whoever comes next settles what was begun: before step 2 it is undone, after it finished. One change at a time is a
lock on this machine; for several machines a flow holds Prefect's lock beside it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from grpo.errors import PromotionRefused, RegistryError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion, RegisteredModel

CANDIDATE, CHAMPION, PREVIOUS = "candidate", "champion", "previous"
_RECORD, _PENDING = "succession.", "succession.pending"


class Actor(BaseModel):
    """Who asks for a change."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    user: str
    host: str
    run: str | None = None
    """Flow run."""


class Transition(BaseModel):
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
    reason: str = Field(min_length=1, max_length=1000)
    by: Actor
    at: str
    """UTC, ISO 8601."""
    forced: bool = False
    """Against a verdict or another rule."""
    checks: dict[str, float | None] = Field(default_factory=dict)
    """The numbers of the gates."""


class Succession:
    """The versions of one model that have served, in order."""

    def __init__(self, client: MlflowClient, model: str, lock: AbstractContextManager[object]) -> None:
        self._client = client
        self._model = model
        self._lock = lock

    def history(self) -> tuple[Transition, ...]:
        """Every promotion and rollback so far, the first one first; a half-done one is settled before."""
        with self._lock:
            return _history(self._settled())

    def promote(
        self,
        version: int,
        *,
        reason: str,
        by: Actor,
        force: bool = False,
        checks: dict[str, float | None] | None = None,
    ) -> Transition | None:
        """Let a version serve; None where it does so already.

        Raises `PromotionRefused` for a version that did not pass its gates, that was judged against another version
        than the one in service, or that has served before: `force` overrides and is recorded.
        """
        with self._lock:
            model = self._settled()
            chosen = self._version(version)
            serving = _alias(model, CHAMPION)
            if serving == version:
                return None
            refusal = self._refusal(chosen, serving, _history(model))
            if refusal and not force:
                raise PromotionRefused(f"{refusal}; --force with a reason promotes it all the same")
            transition = Transition(
                number=len(_history(model)) + 1,
                action="promote",
                champion=version,
                replaced=serving,
                previous=serving,
                reason=reason,
                by=by,
                at=_now(),
                forced=bool(refusal),
                checks=checks or {},
            )
            self._begin(transition)
            return transition

    def rollback(self, *, reason: str, by: Actor) -> Transition:
        """Let the version serve again that the champion has replaced.

        `previous` then names the one before it: versions 1, 2, 3 rolled back twice leave 1 in service. Raises
        `RegistryError` when there is no version to go back to.
        """
        with self._lock:
            model = self._settled()
            serving, target = _alias(model, CHAMPION), _alias(model, PREVIOUS)
            if serving is None:
                raise RegistryError(f"model {self._model} has no champion, so there is nothing to roll back")
            if target is None:
                raise RegistryError(
                    f"model {self._model} has no version before {serving} to go back to; promote one by its number"
                )
            history = _history(model)
            transition = Transition(
                number=len(history) + 1,
                action="rollback",
                champion=target,
                replaced=serving,
                previous=self._before(target, history),
                reason=reason,
                by=by,
                at=_now(),
            )
            self._begin(transition)
            return transition

    def _refusal(self, chosen: ModelVersion, serving: int | None, history: tuple[Transition, ...]) -> str | None:
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
        return None

    def _version(self, version: int) -> ModelVersion:
        from mlflow.exceptions import MlflowException

        try:
            return self._client.get_model_version(self._model, str(version))
        except MlflowException as error:
            if is_absent(error):
                raise RegistryError(f"model {self._model} has no version {version}") from error
            raise

    def _before(self, target: int, history: tuple[Transition, ...]) -> int | None:
        """The version that served before `target` came to serve, if it is still there."""
        stack = standing(history)
        while stack and stack.pop() != target:
            pass
        known = {int(one.version) for one in self._client.search_model_versions(f"name = '{self._model}'")}
        while stack:
            if (below := stack.pop()) in known and below != target:
                return below
        return None

    def _settled(self) -> RegisteredModel:
        """The model, after a change that was left half done is finished, or undone where it had not begun to serve."""
        model = self._model_now()
        if (text := model.tags.get(_PENDING)) is not None:
            pending = Transition.model_validate_json(text)
            if _alias(model, CHAMPION) == pending.champion:
                self._finish(pending)
            else:
                self._client.delete_registered_model_tag(self._model, _PENDING)
            model = self._model_now()
        return model

    def _model_now(self) -> RegisteredModel:
        from mlflow.exceptions import MlflowException

        try:
            return self._client.get_registered_model(self._model)
        except MlflowException as error:
            if is_absent(error):
                raise RegistryError(f"no model {self._model} is registered; a run registers it when it ends") from error
            raise

    def _begin(self, transition: Transition) -> None:
        """Write down what is to be done, and do it."""
        text = transition.model_dump_json()
        self._client.set_registered_model_tag(self._model, _PENDING, text)
        if self._model_now().tags.get(_PENDING) != text:
            raise RegistryError(f"another promotion of model {self._model} is under way; try again")
        self._client.set_registered_model_alias(self._model, CHAMPION, str(transition.champion))
        self._finish(transition)

    def _finish(self, transition: Transition) -> None:
        """What follows once the champion is set; done twice, it is done once."""
        if transition.previous is None:
            self._client.delete_registered_model_alias(self._model, PREVIOUS)
        else:
            self._client.set_registered_model_alias(self._model, PREVIOUS, str(transition.previous))
        key = f"{_RECORD}{transition.number:04}"
        self._client.set_registered_model_tag(self._model, key, transition.model_dump_json())
        self._client.delete_registered_model_tag(self._model, _PENDING)


def standing(history: tuple[Transition, ...]) -> list[int]:
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


def is_absent(error: Exception) -> bool:
    """Whether MLflow says that something does not exist, and not that it cannot be asked."""
    code, text = getattr(error, "error_code", ""), str(error)
    return code == "RESOURCE_DOES_NOT_EXIST" or (code == "INVALID_PARAMETER_VALUE" and "not found" in text)


def _history(model: RegisteredModel) -> tuple[Transition, ...]:
    keys = sorted(key for key in model.tags if key.startswith(_RECORD) and key != _PENDING)
    return tuple(Transition.model_validate_json(model.tags[key]) for key in keys)


def _alias(model: RegisteredModel, name: str) -> int | None:
    found = model.aliases.get(name)
    return None if found is None else int(found)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
