"""Promotions and rollbacks of a registered model.

The last signed record decides which version is in service (`grpo.policy.weights.promotion_records`). MLflow writes one
tag or alias in one transaction and guarantees no more. Therefore a change takes effect with its record, and the aliases
follow:

    1  tag promotion.0007    in effect
    2  alias champion        for people and other clients
    3  alias previous        the target of a rollback

If the process is killed before step 1, nothing has changed. If it is killed after step 1, the change is in effect, and
the next change sets the aliases. A lock serializes changes on one machine, and Prefect's concurrency limit serializes
them across machines. Readers take no lock and write nothing. With `follow_alias` the champion is the version that the
alias `champion` names, even if the alias was moved by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from grpo.errors import AddressError, NothingToRollBack, PromotionRefused, RegistryError, SignatureError
from grpo.policy.weights.promotion_records import (
    CHAMPION,
    PREVIOUS,
    Actor,
    ChampionChange,
    PromotionState,
    alias_of,
    missing_champion,
    next_number,
    promotion_state,
    record_key,
    registered_model,
    remember,
    state_of,
    write_record,
)
from grpo.policy.weights.registered import ModelVersion, as_promoted, version_by_number
from grpo.policy.weights.registry_pages import all_versions
from grpo.storage.documents import Document

if TYPE_CHECKING:
    from mlflow import MlflowClient


class PromotionRule(Document):
    """Rule of a promotion."""

    name: str
    refusal: str | None
    """Reason why the version is refused. None if it keeps the rule."""


class PlannedChange(Document):
    """A promotion or rollback that was not made."""

    champion: int | None
    """Version in service now."""
    previous: int | None
    """Version that the alias `previous` names now."""
    change: ChampionChange | None
    """Record that would be written. None if the version is champion already."""
    rules: tuple[PromotionRule, ...]
    """Rules of a promotion. A rollback has none."""


class PromotionLog:
    """Promotions and rollbacks of one model."""

    def __init__(self, client: MlflowClient, model: str, lock: AbstractContextManager[object]) -> None:
        self._client = client
        self._model = model
        self._lock = lock

    def state(self) -> PromotionState:
        """Read champion and history, without taking a lock or writing anything."""
        return promotion_state(self._client, self._model)

    def history(self) -> tuple[ChampionChange, ...]:
        """Signed changes, oldest first."""
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
        follow_alias: bool = False,
    ) -> ChampionChange | None:
        """Make a version the champion, or return None and put its aliases back if it is the champion already.

        `verify` raises if files are damaged. Raises `SignatureError` if the version is not believed, and
        `PromotionRefused` if it failed its gates, was evaluated against another champion or was in service before, or
        if a deleted champion has not been replaced. `force` overrides a refusal, and the record has it.
        """
        with self._lock:
            state, stale = self._read(follow_alias=follow_alias)
            change, rules = self._promotion(state, version, reason=reason, by=by, checks=checks)
            refusal = next((rule.refusal for rule in rules if rule.refusal is not None), None)
            if change is None:
                if stale:
                    self._set_aliases(state.history[-1])
                return None
            if refusal and not force:
                raise PromotionRefused(f"{refusal}. Use --force with a reason if you want to promote it anyway")
            if verify is not None:
                verify(version)
            self._apply(change)
            return change

    def rollback(
        self,
        *,
        reason: str,
        by: Actor,
        verify: Callable[[int], None] | None = None,
        follow_alias: bool = False,
    ) -> ChampionChange:
        """Restore the version before the champion, or with `follow_alias` before the one that the alias names.

        Versions 1, 2, 3 rolled back twice leave 1 in service. Deleted versions are skipped, and a deleted champion is
        replaced. If a flow run is retried, it rolls back once. Raises `NothingToRollBack` if an earlier version does
        not exist, and `RegistryError` if another promotion or rollback has ended while this one waited for it.
        """
        seen, _ = self._read(follow_alias=follow_alias)
        with self._lock:
            state, stale = self._read(follow_alias=follow_alias)
            if (done := _already_done(state.history, stale, reason, by)) is not None:
                if stale:
                    self._set_aliases(state.history[-1])
                return done
            if state.champion != seen.champion:
                raise RegistryError(
                    f"another change of model {self._model} was made at the same time: version {state.champion} is "
                    "champion now. Nothing was rolled back. Repeat the command if an earlier version should answer"
                )
            change = self._rollback(state, reason=reason, by=by)
            if verify is not None:
                verify(change.champion)
            self._apply(change)
            return change

    def plan_promotion(
        self, version: int, *, reason: str, by: Actor, checks: dict[str, float | None] | None = None
    ) -> PlannedChange:
        """The promotion that `promote` would make now, and the rules that it keeps or breaks. Writes nothing."""
        state = self.state()
        change, rules = self._promotion(state, version, reason=reason, by=by, checks=checks)
        return PlannedChange(champion=state.champion, previous=self._previous(), change=change, rules=rules)

    def plan_rollback(self, *, reason: str, by: Actor, follow_alias: bool = False) -> PlannedChange:
        """The rollback that `rollback` would make now. Writes nothing. Raises `NothingToRollBack`."""
        state, _ = self._read(follow_alias=follow_alias)
        change = self._rollback(state, reason=reason, by=by)
        return PlannedChange(champion=state.champion, previous=self._previous(), change=change, rules=())

    def _previous(self) -> int | None:
        return alias_of(registered_model(self._client, self._model), PREVIOUS)

    def _promotion(
        self,
        state: PromotionState,
        version: int,
        *,
        reason: str,
        by: Actor,
        checks: dict[str, float | None] | None,
    ) -> tuple[ChampionChange | None, tuple[PromotionRule, ...]]:
        """Record of a promotion, and its rules. The record is None if the version is champion already."""
        candidate = self._version(version)
        if state.history and state.champion == version and candidate.content == state.history[-1].content:
            return None, ()
        rules = tuple(self._rules(candidate, state))
        previous = state.champion
        if previous in (None, version):  # a deleted champion, or an alias that was moved by hand
            previous = _before(version, champion_stack(state.history), self._existing_versions())
        change = ChampionChange(
            number=next_number(state),
            action="promote",
            champion=version,
            content=candidate.content,
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
        """Record of a rollback. Raises `NothingToRollBack` if an earlier version does not exist."""
        history = state.history
        if not history:
            raise NothingToRollBack(f"model {self._model} has no champion, so there is nothing to roll back")
        last, stack = state.champion or history[-1].champion, champion_stack(history)
        if last not in stack[-1:]:  # an alias that was moved by hand
            stack.append(last)
        existing = self._existing_versions()
        target = _before(last, stack, existing)
        if target is None:
            raise NothingToRollBack(
                f"model {self._model} has no version before {last} to go back to. Promote one by its number"
            )
        return ChampionChange(
            number=next_number(state),
            action="rollback",
            champion=target,
            content=as_promoted(self._version(target), state).content,
            replaced=state.champion,
            previous=_before(target, stack, existing),
            reason=reason,
            by=by,
            at=_now(),
        )

    def _rules(self, candidate: ModelVersion, state: PromotionState) -> Iterator[PromotionRule]:
        """Rules of a promotion, each with the reason if the version breaks it."""
        name = f"{self._model} version {candidate.version}"
        verdict, refusal = candidate.tags.get("verdict"), None
        if verdict != "promote":
            refusal = f"{name} has the verdict {verdict!r}. Only a version that passed its gates is promoted"
        yield PromotionRule(name="passed its gates", refusal=refusal)
        number, refusal = candidate.version, None
        if changes := [change for change in state.history if number in (change.champion, change.replaced)]:
            last = changes[-1]
            refusal = f"{name} was in service before, until a {last.action} to version {last.champion} ({last.reason})"
        yield PromotionRule(name="was not in service before", refusal=refusal)
        yield PromotionRule(
            name="was evaluated against the present champion", refusal=self._other_champion(name, candidate, state)
        )

    def _other_champion(self, name: str, candidate: ModelVersion, state: PromotionState) -> str | None:
        """Reason why a version was not evaluated against the champion. None if it was, or if none was ever promoted."""
        if state.champion is None:
            missing = state.history or state.alias not in (None, candidate.version)
            return str(missing_champion(self._client, state)) if missing else None
        if state.champion == candidate.version:
            return None
        try:
            champion = self._version(state.champion)
        except SignatureError as error:  # it may be replaced, with force
            return f"the champion is not trusted: {error}"
        if candidate.tags.get("champion_sha256") == champion.tags.get("checkpoint_sha256"):
            return None
        return f"{name} was not evaluated against the policy of version {state.champion}, the champion"

    def _version(self, version: int) -> ModelVersion:
        verified = version_by_number(self._client, self._model, version)
        if verified is None:
            raise AddressError(
                f"model {self._model} has no version {version}. `grpo models {self._model}` lists its versions"
            )
        return verified

    def _existing_versions(self) -> set[int]:
        return {int(version.version) for version in all_versions(self._client, f"name = '{self._model}'")}

    def _read(self, *, follow_alias: bool = False) -> tuple[PromotionState, bool]:
        """State, and True if the aliases differ from the last change, because it was interrupted or they were moved.

        With `follow_alias` the champion is the version that the alias names.
        """
        model = registered_model(self._client, self._model)
        state = state_of(self._client, model)
        if follow_alias and state.alias is not None:
            return state.model_copy(update={"champion": state.alias}), False
        if state.champion is None:
            return state, False
        previous = state.history[-1].previous
        expected = previous if previous is None or previous in self._existing_versions() else None
        return state, (state.alias, alias_of(model, PREVIOUS)) != (state.champion, expected)

    def _apply(self, change: ChampionChange) -> None:
        text = write_record(self._client, self._model, change)
        model = registered_model(self._client, self._model)
        if model.tags.get(record_key(change.number)) != text:
            raise RegistryError(f"another promotion of model {self._model} is in progress. Try again")
        remember(self._client.tracking_uri, self._model, model.creation_timestamp, change.number)
        self._set_aliases(change)

    def _set_aliases(self, change: ChampionChange) -> None:
        self._client.set_registered_model_alias(self._model, CHAMPION, str(change.champion))
        if change.previous is None or change.previous not in self._existing_versions():
            self._client.delete_registered_model_alias(self._model, PREVIOUS)
        else:
            self._client.set_registered_model_alias(self._model, PREVIOUS, str(change.previous))


def champion_stack(history: tuple[ChampionChange, ...]) -> list[int]:
    """Champions in order, from the oldest one that a rollback can reach to the present one.

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
    """Newest existing version below `version` in the stack, or in the whole stack if `version` is not in it."""
    end = len(stack) - stack[::-1].index(version) - 1 if version in stack else len(stack)
    return next((below for below in reversed(stack[:end]) if below in existing and below != version), None)


def _already_done(
    history: tuple[ChampionChange, ...], interrupted: bool, reason: str, by: Actor
) -> ChampionChange | None:
    """The rollback in effect that this request repeats, if any.

    A request repeats a rollback of the same flow run, or an interrupted one by the same person with the same reason. If
    a command is repeated after a kill, it has another flow run, so only the reason distinguishes it from a second
    rollback.
    """
    for change in reversed(history):
        if change.action == "rollback" and by.run is not None and change.by.run == by.run:
            return change
    if not interrupted or history[-1].action != "rollback":
        return None
    last = history[-1]
    return last if (by.user, by.host, reason) == (last.by.user, last.by.host, last.reason) else None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
