"""Promotions and rollbacks of a registered model.

The alias `champion` alone decides which version is in service. MLflow moves one alias in one transaction and guarantees
no more, so the record of a change is written first and takes effect with the alias:

    1  tag promotion.0007    the record
    2  alias champion        in effect
    3  alias previous        the target of a rollback, derived from the records

After a kill before step 2 the record is pending and the next change removes it; after it the next change only sets
`previous`. The first promotion of a model sets the alias first, so that a single record without a champion means a
deleted one. Changes on one machine are serialized by a lock, across machines by Prefect's concurrency limit. Readers
take no lock and write nothing.
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, StringConstraints

from grpo.errors import AddressError, NothingToRollBack, PromotionRefused, RegistryError
from grpo.policy.weights.registered import is_absent
from grpo.storage.documents import Document

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion, RegisteredModel

CANDIDATE, CHAMPION, PREVIOUS = "candidate", "champion", "previous"
_RECORD = "promotion."

LONGEST_REASON = 1000
Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=LONGEST_REASON)]
"""Reason of a change; an MLflow tag holds it with the rest of the record."""


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
    replaced: int | None
    """Version in service before it."""
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

    champion: int | None
    """Version in service."""
    history: tuple[ChampionChange, ...]
    """Changes in effect, oldest first."""
    pending: ChampionChange | None
    """Change in progress, or interrupted before it took effect; the next change removes it."""


class PromotionRule(Document):
    """Rule of a promotion."""

    name: str
    refusal: str | None
    """Reason why the version is refused; None where it keeps the rule."""


class PlannedChange(Document):
    """A promotion or rollback that was not made."""

    champion: int | None
    """Version that the alias `champion` names now."""
    previous: int | None
    """Version that the alias `previous` names now."""
    change: ChampionChange | None
    """Record that would be written; None where the version is champion already."""
    rules: tuple[PromotionRule, ...]
    """Rules of a promotion; none of a rollback."""


class PromotionLog:
    """Promotions and rollbacks of one model."""

    def __init__(self, client: MlflowClient, model: str, lock: AbstractContextManager[object]) -> None:
        self._client = client
        self._model = model
        self._lock = lock

    def state(self) -> PromotionState:
        """Read champion, history and a pending change; takes no lock and writes nothing."""
        return self._state(self._registered_model())

    def history(self) -> tuple[ChampionChange, ...]:
        """Changes in effect, oldest first."""
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
        """Make a version the champion; None if it is. `verify` raises for a version with damaged files.

        Raises `PromotionRefused` for a version that failed its gates, was evaluated against another champion or was in
        service before, and while a deleted champion is not replaced; `force` overrides, and the record has it.
        """
        with self._lock:
            state, _ = self._settle()
            change, rules = self._promotion(state, version, reason=reason, by=by, checks=checks)
            refusal = next((rule.refusal for rule in rules if rule.refusal is not None), None)
            if change is None:
                return None
            if refusal and not force:
                raise PromotionRefused(f"{refusal}; --force with a reason overrides this")
            if verify is not None:
                verify(version)
            self._apply(change)
            return change

    def rollback(self, *, reason: str, by: Actor, verify: Callable[[int], None] | None = None) -> ChampionChange:
        """Restore the version before the champion.

        Versions 1, 2, 3 rolled back twice leave 1 in service. Deleted versions are skipped, and a deleted champion is
        replaced. A flow run that is retried rolls back once. Raises `NothingToRollBack` without an earlier version.
        """
        with self._lock:
            state, interrupted = self._settle()
            if (done := _already_done(state.history, interrupted, reason, by)) is not None:
                return done
            change = self._rollback(state, reason=reason, by=by)
            if verify is not None:
                verify(change.champion)
            self._apply(change)
            return change

    def plan_promotion(
        self, version: int, *, reason: str, by: Actor, checks: dict[str, float | None] | None = None
    ) -> PlannedChange:
        """The promotion as `promote` would make it now, and the rules that it keeps or breaks; writes nothing."""
        state = self.state()
        change, rules = self._promotion(state, version, reason=reason, by=by, checks=checks)
        return PlannedChange(champion=state.champion, previous=self._previous(), change=change, rules=rules)

    def plan_rollback(self, *, reason: str, by: Actor) -> PlannedChange:
        """The rollback as `rollback` would make it now; writes nothing. Raises `NothingToRollBack`."""
        state = self.state()
        change = self._rollback(state, reason=reason, by=by)
        return PlannedChange(champion=state.champion, previous=self._previous(), change=change, rules=())

    def _previous(self) -> int | None:
        return _alias(self._registered_model(), PREVIOUS)

    def _promotion(
        self,
        state: PromotionState,
        version: int,
        *,
        reason: str,
        by: Actor,
        checks: dict[str, float | None] | None,
    ) -> tuple[ChampionChange | None, tuple[PromotionRule, ...]]:
        """Record of a promotion, and its rules; no record for a version that is champion already."""
        candidate = self._version(version)
        if state.champion == version:
            if state.history:
                return None, ()
            state = state.model_copy(update={"champion": None})  # the first promotion was interrupted: record it
        rules = tuple(self._rules(candidate, state))
        previous = state.champion
        if previous is None:  # a deleted champion
            previous = _before(version, champion_stack(state.history), self._existing_versions())
        change = ChampionChange(
            number=len(state.history) + 1,
            action="promote",
            champion=version,
            replaced=state.champion,
            previous=previous,
            reason=reason,
            by=by,
            at=_now(),
            forced=any(rule.refusal for rule in rules),
            checks=checks or {},
        )
        return change, rules

    def _rollback(self, state: PromotionState, *, reason: str, by: Actor) -> ChampionChange:
        """Record of a rollback. Raises `NothingToRollBack` without an earlier version."""
        history = state.history
        if state.champion is None and not history:
            raise NothingToRollBack(f"model {self._model} has no champion, so there is nothing to roll back")
        last, stack = state.champion or history[-1].champion, champion_stack(history)
        existing = self._existing_versions()
        target = _before(last, stack, existing)
        if target is None:
            raise NothingToRollBack(
                f"model {self._model} has no version before {last} to go back to; promote one by its number"
            )
        return ChampionChange(
            number=len(history) + 1,
            action="rollback",
            champion=target,
            replaced=state.champion,
            previous=_before(target, stack, existing),
            reason=reason,
            by=by,
            at=_now(),
        )

    def _rules(self, candidate: ModelVersion, state: PromotionState) -> Iterator[PromotionRule]:
        """Rules of a promotion, each with the reason where the version breaks it."""
        name = f"{self._model} version {candidate.version}"
        verdict, refusal = candidate.tags.get("verdict"), None
        if verdict != "promote":
            refusal = f"{name} has the verdict {verdict!r}; only a version that passed its gates is promoted"
        yield PromotionRule(name="passed its gates", refusal=refusal)
        number, refusal = int(candidate.version), None
        if changes := [change for change in state.history if number in (change.champion, change.replaced)]:
            last = changes[-1]
            refusal = f"{name} was in service before, until a {last.action} to version {last.champion} ({last.reason})"
        yield PromotionRule(name="was not in service before", refusal=refusal)
        refusal = None
        if state.champion is not None:
            champion = self._version(state.champion)
            if candidate.tags.get("champion_sha256") != champion.tags.get("checkpoint_sha256"):
                refusal = (
                    f"{name} was evaluated against another policy than that of version {state.champion}, the champion"
                )
        elif state.history:
            refusal = missing_champion(self._model)
        yield PromotionRule(name="was evaluated against the present champion", refusal=refusal)

    def _version(self, version: int) -> ModelVersion:
        from mlflow.exceptions import MlflowException

        try:
            return self._client.get_model_version(self._model, str(version))
        except MlflowException as error:
            if is_absent(error):
                raise AddressError(f"model {self._model} has no version {version}") from error
            raise

    def _existing_versions(self) -> set[int]:
        versions = self._client.search_model_versions(f"name = '{self._model}'")
        return {int(version.version) for version in versions}

    def _registered_model(self) -> RegisteredModel:
        from mlflow.exceptions import MlflowException

        try:
            return self._client.get_registered_model(self._model)
        except MlflowException as error:
            if is_absent(error):
                raise AddressError(f"no model {self._model} is registered; a run registers it when it ends") from error
            raise

    def _state(self, model: RegisteredModel) -> PromotionState:
        champion, pending = _alias(model, CHAMPION), None
        keys = sorted(key for key in model.tags if key.startswith(_RECORD))
        history = [ChampionChange.model_validate_json(model.tags[key]) for key in keys]
        unmoved = bool(history) and champion == history[-1].replaced  # or its version was deleted
        if unmoved and (champion or (len(history) > 1 and history[-1].champion in self._existing_versions())):
            pending = history.pop()
        return PromotionState(champion=champion, history=tuple(history), pending=pending)

    def _settle(self) -> tuple[PromotionState, bool]:
        """Remove a pending record, or complete a change in effect; True where the latter was interrupted."""
        model = self._registered_model()
        state = self._state(model)
        if state.pending is not None:
            self._client.delete_registered_model_tag(self._model, _key(state.pending))
            return state, False
        if not state.history or state.champion != state.history[-1].champion:
            return state, False
        previous = state.history[-1].previous
        if _alias(model, PREVIOUS) == previous or (previous is not None and previous not in self._existing_versions()):
            return state, False
        self._set_previous(previous)
        return state, True

    def _apply(self, change: ChampionChange) -> None:
        text, is_first = change.model_dump_json(), change.number == 1 and change.replaced is None
        if is_first:
            self._client.set_registered_model_alias(self._model, CHAMPION, str(change.champion))
        self._client.set_registered_model_tag(self._model, _key(change), text)
        if self._registered_model().tags.get(_key(change)) != text:
            raise RegistryError(f"another promotion of model {self._model} is in progress; try again")
        if not is_first:
            self._client.set_registered_model_alias(self._model, CHAMPION, str(change.champion))
        self._set_previous(change.previous)

    def _set_previous(self, version: int | None) -> None:
        if version is None:
            self._client.delete_registered_model_alias(self._model, PREVIOUS)
        else:
            self._client.set_registered_model_alias(self._model, PREVIOUS, str(version))


def missing_champion(model: str) -> str:
    """Message for a model whose champion was deleted, with the remedies."""
    return (
        f"model {model} had a champion and has none now: the version or its alias was deleted; "
        f"`grpo rollback models:/{model}@champion --reason WHY` restores the version before it, "
        f"`grpo promote models:/{model}/N --reason WHY --force` promotes another one, "
        "and another registry.model_name starts anew"
    )


def champion_stack(history: tuple[ChampionChange, ...]) -> list[int]:
    """Champions from the oldest that a rollback can reach to the present one.

    promote 1, 2, 3 → 1 2 3      rollback → 1 2      promote 4 → 1 2 4
    """
    stack: list[int] = []
    for change in history:
        if change.action == "promote":
            if change.replaced is not None and change.replaced not in stack[-1:]:  # an alias that was set by hand
                stack.append(change.replaced)
            stack.append(change.champion)
            continue
        while stack and stack[-1] != change.champion:
            stack.pop()
        stack = stack or [change.champion]
    return stack


def _before(version: int, stack: list[int], existing: set[int]) -> int | None:
    """Newest existing version below `version` in the stack, or of all the stack if it is not in it."""
    end = len(stack) - stack[::-1].index(version) - 1 if version in stack else len(stack)
    return next((below for below in reversed(stack[:end]) if below in existing and below != version), None)


def _already_done(
    history: tuple[ChampionChange, ...], interrupted: bool, reason: str, by: Actor
) -> ChampionChange | None:
    """The rollback in effect that this request repeats: of the same flow run, or an interrupted one by the same person.

    A command that is repeated after a kill has another flow run; the reason distinguishes it from a second rollback.
    """
    for change in reversed(history):
        if change.action == "rollback" and by.run is not None and change.by.run == by.run:
            return change
    if not interrupted or history[-1].action != "rollback":
        return None
    last = history[-1]
    return last if (by.user, by.host, reason) == (last.by.user, last.by.host, last.reason) else None


def _key(change: ChampionChange) -> str:
    return f"{_RECORD}{change.number:04}"


def _alias(model: RegisteredModel, name: str) -> int | None:
    version = model.aliases.get(name)
    return None if version is None else int(version)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
