"""Promotions and rollbacks on a real SQLite store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INTERNAL_ERROR, INVALID_PARAMETER_VALUE, RESOURCE_DOES_NOT_EXIST

from grpo.errors import AddressError, NothingToRollBack, PromotionRefused, RegistryError
from grpo.policy.weights.promotion_records import Actor, ChampionChange, is_absent
from grpo.registry import Registry
from grpo.registry.promotions import PromotionLog, champion_stack
from grpo.storage.signing import verify
from tests.grpo.registry.making import ANNA, BEN, put_version, serving
from tests.places import ROOT

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow warns of its own internals


def _three(registry: Registry, model: str) -> None:
    """Versions 1, 2 and 3, each promoted over the one before."""
    for checkpoint, against in (("a", "base"), ("b", "a"), ("c", "b")):
        version = put_version(registry, model, checkpoint, against=against)
        registry.promotions(model).promote(version, reason=f"gates of {checkpoint}", by=ANNA, checks={"length": 1.1})


def test_a_promotion_records_author_reason_replaced_version_and_gates(registry: Registry):
    """The third of three replaces version 2."""
    _three(registry, "recorded")
    assert serving(registry, "recorded") == (3, 2)
    last = registry.promotions("recorded").history()[-1]
    assert (last.number, last.action, last.champion, last.replaced, last.previous) == (3, "promote", 3, 2, 2)
    assert (last.by, last.reason, last.checks, last.forced) == (ANNA, "gates of c", {"length": 1.1}, False)
    assert last.at.startswith("20")


def test_two_rollbacks_go_two_versions_back_and_a_third_is_refused(registry: Registry):
    """1, 2, 3 → 2 → 1, not back to 3."""
    _three(registry, "back")
    line = registry.promotions("back")
    assert line.rollback(reason="refunds twice", by=BEN).champion == 2
    assert serving(registry, "back") == (2, 1)
    line.rollback(reason="refunds twice", by=BEN)
    assert serving(registry, "back") == (1, None)
    with pytest.raises(NothingToRollBack, match="no version before 1 to go back to"):
        line.rollback(reason="refunds twice", by=BEN)
    assert [one.action for one in line.history()] == ["promote"] * 3 + ["rollback"] * 2


def test_a_rollback_of_an_alias_that_was_moved_by_hand_restores_the_version_before_the_move(registry: Registry):
    """Versions 1, 2 and 3 were promoted, and then somebody moved the alias to 2: the version before is 3, not 1."""
    _three(registry, "moved")
    line = registry.promotions("moved")
    registry.client.set_registered_model_alias("moved", "champion", "2")
    assert line.rollback(reason="refunds twice", by=ANNA, follow_alias=True).champion == 3


def test_a_rollback_of_a_later_promotion_skips_the_version_that_was_rolled_back(registry: Registry):
    """1, 2, back to 1, then 3: previous is 1, not 2."""
    for checkpoint, against in (("a", "base"), ("b", "a")):
        version = put_version(registry, "branch", checkpoint, against=against)
        registry.promotions("branch").promote(version, reason="gates", by=ANNA)
    line = registry.promotions("branch")
    line.rollback(reason="no", by=BEN)
    line.promote(put_version(registry, "branch", "c", against="a"), reason="gates", by=ANNA)
    assert serving(registry, "branch") == (3, 1)
    line.rollback(reason="no", by=BEN)
    assert serving(registry, "branch") == (1, None)


def test_a_model_without_a_champion_cannot_be_rolled_back(registry: Registry):
    """Nor a model or version that does not exist."""
    put_version(registry, "fresh", "a", against="base")
    with pytest.raises(NothingToRollBack, match="fresh has no champion"):
        registry.promotions("fresh").rollback(reason="why not", by=ANNA)
    with pytest.raises(AddressError, match="no model missing is registered"):
        registry.promotions("missing").rollback(reason="why not", by=ANNA)
    with pytest.raises(AddressError, match="fresh has no version 9"):
        registry.promotions("fresh").promote(9, reason="why not", by=ANNA)


def test_promoting_the_champion_changes_nothing(registry: Registry):
    """No alias moves, and no record is added."""
    _three(registry, "same")
    assert registry.promotions("same").promote(3, reason="again", by=ANNA) is None
    assert serving(registry, "same") == (3, 2)
    assert len(registry.promotions("same").history()) == 3


@pytest.mark.parametrize(
    ("model", "verdict", "against", "message"),
    [
        ("refused", "refuse", "c", "version 4 has the verdict 'refuse'"),
        ("stale", "promote", "b", "not evaluated against the policy of version 3"),
    ],
)
def test_a_version_that_failed_or_beat_another_champion_is_refused_unless_forced(
    registry: Registry, model: str, verdict: str, against: str, message: str
):
    """The record of a forced promotion has `forced`."""
    _three(registry, model)
    version = put_version(registry, model, "d", against=against, verdict=verdict)
    line = registry.promotions(model)
    with pytest.raises(PromotionRefused, match=message):
        line.promote(version, reason="I like it", by=ANNA)
    assert serving(registry, model) == (3, 2)
    forced = line.promote(version, reason="I like it", by=ANNA, force=True)
    assert forced is not None
    assert forced.forced
    assert serving(registry, model) == (4, 3)


def test_a_version_that_was_rolled_back_is_promoted_again_only_with_force(registry: Registry):
    """A rerun of its run must not undo the operator's rollback."""
    _three(registry, "returned")
    line = registry.promotions("returned")
    line.rollback(reason="refunds twice", by=ANNA)
    with pytest.raises(
        PromotionRefused, match=r"was in service before, until a rollback to version 2 \(refunds twice\)"
    ):
        line.promote(3, reason="again", by=ANNA)
    assert line.promote(3, reason="it was the tool", by=ANNA, force=True) is not None


class Killed(BaseException):
    """End of a process: no handler catches it."""


class Dying:
    """An MLflow client whose process is killed at one of its calls, before or after the server handles it."""

    def __init__(self, client: Any, *, at: int, after: bool) -> None:
        self._client, self._at, self._after, self.calls = client, at, after, 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if not callable(method):
            return method

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls == self._at and not self._after:
                raise Killed
            result = method(*arguments, **named)
            if self.calls == self._at:
                raise Killed
            return result

        return call


def _dying(registry: Registry, model: str, *, at: int, after: bool) -> PromotionLog:
    """Promotion log of a process that is killed at one of its calls."""
    client = Dying(registry.client, at=at, after=after)
    return Registry(registry.tracking_uri, client=client).promotions(model)  # type: ignore[arg-type]


@pytest.mark.parametrize("action", ["promote", "rollback"])
def test_a_change_killed_at_any_call_leaves_one_champion_and_is_applied_once_on_retry(registry: Registry, action: str):
    """At each call, before and after it: the old or the new champion; the retried flow run completes the change."""
    outcomes = set()
    for at in range(1, 30):
        for after in (False, True):
            model = f"dying-{action}-{at}-{after}"
            for checkpoint, against in (("a", "base"), ("b", "a")):
                version = put_version(registry, model, checkpoint, against=against)
                registry.promotions(model).promote(version, reason="gates", by=BEN)
            version = put_version(registry, model, "c", against="b")

            def ask(line: PromotionLog, version: int = version) -> None:
                if action == "promote":
                    line.promote(version, reason="gates", by=ANNA)
                else:
                    assert line.rollback(reason="no", by=ANNA).champion == 1

            try:
                ask(_dying(registry, model, at=at, after=after))
            except Killed:
                pass
            else:
                assert outcomes == {"old", "new"}, "killed before the change and after it"
                return
            new = (3, 2) if action == "promote" else (1, None)
            left = serving(registry, model)[0]
            assert left in (2, new[0])
            outcomes.add("new" if left == new[0] else "old")
            ask(registry.promotions(model))
            assert serving(registry, model) == new
            state = registry.promotions(model).state()
            assert [one.action for one in state.history] == ["promote", "promote", action]
            assert state.moved is None
            assert len(registry.client.get_registered_model(model).tags) == 3
    pytest.fail("it never ended")


_CHAMPION_SET = 10
"""Calls of a rollback up to the one that moves the alias `champion`."""


def test_a_killed_rollback_command_that_is_repeated_goes_back_one_version(registry: Registry):
    """The repeated command has another flow run; with another reason it is a second rollback."""
    for model, reason, expected in (("typed-again", "refunds twice", (2, 1)), ("other-reason", "rude", (1, None))):
        _three(registry, model)
        with pytest.raises(Killed):
            _dying(registry, model, at=_CHAMPION_SET, after=True).rollback(reason="refunds twice", by=ANNA)
        assert serving(registry, model) == (2, 2), "previous has not moved yet"
        again = Actor(user=ANNA.user, host=ANNA.host, run="run-2")
        registry.promotions(model).rollback(reason=reason, by=again)
        assert serving(registry, model) == expected


def test_a_retried_flow_run_does_not_roll_back_twice(registry: Registry):
    """Its rollback is recorded; version 4 was promoted since."""
    _three(registry, "put-back")
    line = registry.promotions("put-back")
    first = line.rollback(reason="refunds twice", by=ANNA)
    line.promote(put_version(registry, "put-back", "d", against="b"), reason="gates", by=BEN)
    assert line.rollback(reason="refunds twice", by=ANNA) == first
    assert serving(registry, "put-back") == (4, 2)


def test_a_rollback_that_waited_for_another_one_goes_back_no_further(registry: Registry):
    """Two people roll back version 3 at once: the second one is told that 2 is champion, and 1 does not answer."""
    _three(registry, "at-once")

    class Busy:
        """Lock that another rollback has held."""

        def __enter__(self) -> None:
            registry.promotions("at-once").rollback(reason="refunds twice", by=ANNA)

        def __exit__(self, *_: object) -> None:
            pass

    late = PromotionLog(registry.client, "at-once", Busy())
    with pytest.raises(RegistryError, match="made at the same time: version 2 is champion now"):
        late.rollback(reason="rude", by=BEN)
    assert serving(registry, "at-once") == (2, 1)


def test_rollback_replaces_a_deleted_champion_by_the_version_before_it(registry: Registry):
    """Version 3 is deleted, and its alias with it: 2 is champion, then 1 after 2 is deleted as well."""
    _three(registry, "deleted")
    line = registry.promotions("deleted")
    registry.client.delete_model_version("deleted", "3")
    done = line.rollback(reason="it was deleted", by=BEN)
    assert (done.champion, done.replaced, serving(registry, "deleted")) == (2, None, (2, 1))
    registry.client.delete_model_version("deleted", "2")
    line.rollback(reason="it was deleted", by=BEN)
    assert serving(registry, "deleted") == (1, None)


@pytest.mark.parametrize("gone", ["2", "23"])
def test_a_rollback_skips_deleted_versions(registry: Registry, gone: str):
    """1, 2, 3 without 2, or without 2 and the champion: back to 1."""
    _three(registry, f"without-{gone}")
    for version in gone:
        registry.client.delete_model_version(f"without-{gone}", version)
    registry.promotions(f"without-{gone}").rollback(reason="no", by=BEN)
    assert serving(registry, f"without-{gone}") == (1, None)


def test_no_promotion_without_force_while_the_champion_is_missing(registry: Registry):
    """A version that beat the base may be worse than the deleted champion; the message names the remedies."""
    _three(registry, "vacant")
    registry.client.delete_model_version("vacant", "3")
    line = registry.promotions("vacant")
    version = put_version(registry, "vacant", "d", against="base")
    with pytest.raises(
        PromotionRefused, match=r"`grpo rollback models:/vacant@champion .* `grpo promote models:/vacant/N"
    ):
        line.promote(version, reason="gates", by=ANNA)
    assert serving(registry, "vacant") == (None, 2)
    forced = line.promote(version, reason="it is good", by=ANNA, force=True)
    assert forced is not None
    assert (forced.forced, serving(registry, "vacant")) == (True, (4, 2))


class Watched:
    """An MLflow client that calls `look` before each of its calls."""

    def __init__(self, client: Any, look: Callable[[], object]) -> None:
        self._client, self._look = client, look

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if not callable(method):
            return method

        def call(*arguments: Any, **named: Any) -> Any:
            self._look()
            return method(*arguments, **named)

        return call


def test_a_reader_on_another_machine_does_not_disturb_a_promotion(registry: Registry):
    """No lock is shared; the promotion takes effect with its record, and the alias follows."""
    _three(registry, "read")
    version = put_version(registry, "read", "d", against="c")
    reader = PromotionLog(registry.client, "read", nullcontext())
    seen: list[tuple[int | None, int, int | None]] = []

    def look() -> None:
        state = reader.state()
        seen.append((state.champion, len(state.history), state.alias))

    watched = Watched(registry.client, look)
    Registry(registry.tracking_uri, client=watched).promotions("read").promote(version, reason="gates", by=ANNA)  # type: ignore[arg-type]
    look()
    assert list(dict.fromkeys(seen)) == [(3, 3, 3), (4, 4, 3), (4, 4, 4)]


def test_two_promotions_at_once_end_with_one_champion_and_the_other_is_refused(registry: Registry):
    """Both beat version 1; the second was evaluated against a version that is not the champion any more."""
    registry.promotions("race").promote(put_version(registry, "race", "a", against="x"), reason="gates", by=ANNA)
    versions = [put_version(registry, "race", name, against="a") for name in ("b", "c")]
    refused: list[int] = []

    def go(version: int) -> None:
        try:
            Registry(registry.tracking_uri).promotions("race").promote(version, reason="gates", by=ANNA)
        except PromotionRefused:
            refused.append(version)

    threads = [threading.Thread(target=go, args=(version,)) for version in versions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    champion, previous = serving(registry, "race")
    assert previous == 1
    assert [champion, *refused] in (versions, versions[::-1])
    assert len(registry.promotions("race").history()) == 2


KILL = """
import os, signal, sys
from grpo.registry import Registry
from grpo.policy.weights.promotion_records import Actor

registry = Registry(sys.argv[1])
client = registry.client
done = client.set_registered_model_alias

def die(name, alias, version):
    if sys.argv[2] == "after":
        done(name, alias, version)
    os.kill(os.getpid(), signal.SIGKILL)

client.set_registered_model_alias = die
registry.promotions("killed").promote(int(sys.argv[3]), reason="gates", by=Actor(user="u", host="h"))
"""


def test_kill_9_around_the_alias_write(registry: Registry):
    """The record is written, so the new version is champion; the same command again sets the aliases."""
    registry.promotions("killed").promote(put_version(registry, "killed", "a", against="x"), reason="gates", by=ANNA)
    for moment, version, against in (("before", 2, "a"), ("after", 3, "b")):
        put_version(registry, "killed", "bc"[version - 2], against=against)
        command = [sys.executable, "-c", KILL, registry.tracking_uri, moment, str(version)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, timeout=300, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        assert serving(registry, "killed")[0] == (1 if moment == "before" else 3)
        assert registry.promotions("killed").state().champion == version
        assert registry.promotions("killed").promote(version, reason="again", by=ANNA) is None
        assert serving(registry, "killed") == (version, version - 1)


@pytest.mark.parametrize("after", [False, True])
def test_a_killed_first_promotion_is_recorded_on_retry(registry: Registry, after: bool):
    """Killed at each call, the retry ends with champion 1, one record and the alias."""
    for at in range(1, 9):
        model = f"first-{at}-{after}"
        version = put_version(registry, model, "a", against="base")
        try:
            _dying(registry, model, at=at, after=after).promote(version, reason="gates", by=ANNA)
        except Killed:
            registry.promotions(model).promote(version, reason="gates", by=ANNA)
        state = registry.promotions(model).state()
        assert (state.champion, [change.champion for change in state.history], state.alias) == (1, [1], 1)


def test_a_removed_champion_alias_is_not_a_model_without_champion(registry: Registry):
    """The alias was removed by hand after the only promotion: version 1 is champion, and another one has to beat it."""
    registry.promotions("bare").promote(put_version(registry, "bare", "a", against="base"), reason="gates", by=ANNA)
    registry.client.delete_registered_model_alias("bare", "champion")
    with pytest.raises(PromotionRefused, match="not evaluated against the policy of version 1"):
        registry.promotions("bare").promote(put_version(registry, "bare", "b", against="base"), reason="x", by=ANNA)
    assert len(registry.promotions("bare").history()) == 1


@pytest.mark.parametrize(
    ("history", "stack"),
    [
        ("", []),
        ("+1", [1]),
        ("+1 +2 +3", [1, 2, 3]),
        ("+1 +2 +3 -2", [1, 2]),
        ("+1 +2 +3 -2 +4", [1, 2, 4]),
        ("+1 +2 -1 -1", [1]),
        ("+2/1", [1, 2]),  # 1 was put into service by hand
        ("+1 +3/2", [1, 2, 3]),
        ("-7", [7]),
        ("+1 +2 -7 +3/7", [7, 3]),
    ],
)
def test_a_promotion_adds_to_the_champion_stack_and_a_rollback_removes(history: str, stack: list[int]):
    """+3 promotes 3 over the champion, +3/2 over 2, and -2 goes back to 2."""
    changes, champion_before = [], None
    for number, step in enumerate(history.split(), start=1):
        champion, _, replaced = step[1:].partition("/")
        changes.append(
            ChampionChange(
                number=number,
                action="promote" if step[0] == "+" else "rollback",
                champion=int(champion),
                content="",
                replaced=int(replaced) if replaced else champion_before,
                previous=None,
                reason="why",
                by=ANNA,
                at="2026-01-01T00:00:00+00:00",
            )
        )
        champion_before = int(champion)
    assert champion_stack(tuple(changes)) == stack


@pytest.mark.parametrize(
    ("message", "code", "absent"),
    [
        ("Registered model alias champion not found.", INVALID_PARAMETER_VALUE, True),
        ("no such version", RESOURCE_DOES_NOT_EXIST, True),
        ("Invalid name", INVALID_PARAMETER_VALUE, False),
        ("Host not found", INTERNAL_ERROR, False),
    ],
)
def test_absence_is_distinguished_from_other_errors(message: str, code: int, absent: bool):
    """MLflow has two codes for a missing object, one of which has other meanings too."""
    assert is_absent(MlflowException(message, error_code=code)) is absent


def test_an_error_of_another_library_is_not_absence():
    """Even with the same message."""
    assert not is_absent(OSError("not found"))


def test_a_model_whose_versions_were_all_deleted_cannot_be_rolled_back(registry: Registry):
    """The message names the last champion."""
    _three(registry, "emptied")
    for number in ("1", "2", "3"):
        registry.client.delete_model_version("emptied", number)
    with pytest.raises(NothingToRollBack) as refusal:
        registry.promotions("emptied").rollback(reason="no", by=BEN)
    assert str(refusal.value) == ("model emptied has no version before 3 to go back to. Promote one by its number")


def test_a_missing_champion_has_three_remedies(registry: Registry):
    """Each with its command or setting. A rollback is none if there is no version to go back to."""
    for content in "abc":
        put_version(registry, "lost", content, against="base")
    promotions = registry.promotions("lost")
    deleted = "model lost had a champion and has none now, because the version was deleted. "
    remedies = (
        "`grpo promote models:/lost/N --reason WHY --force` promotes another one, "
        "and another registry.model_name starts without a champion"
    )

    def refusal() -> str:
        with pytest.raises(RegistryError) as refused:
            registry.champion("lost")
        return str(refused.value)

    promotions.promote(1, reason="gates", by=ANNA)
    promotions.promote(2, reason="gates", by=ANNA, force=True)
    registry.client.delete_model_version("lost", "2")
    assert refusal() == (
        f"{deleted}`grpo rollback models:/lost@champion --reason WHY` restores the version before it, {remedies}"
    )
    registry.client.delete_model_version("lost", "1")
    assert refusal() == f"{deleted}{remedies}"
    promotions.promote(3, reason="gates", by=ANNA, force=True)
    registry.client.delete_model_version("lost", "3")
    assert refusal() == f"{deleted}{remedies}"
    with pytest.raises(NothingToRollBack, match="no version before 3"):
        promotions.rollback(reason="no", by=BEN)


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (2, "version 2 has the verdict 'refuse'. Only a version that passed its gates is promoted"),
        (3, "version 3 was not evaluated against the policy of version 1, the champion"),
        (1, "version 1 was in service before, until a promote to version 4 (better)"),
    ],
)
def test_a_refusal_has_the_reason_and_the_way_around_it(registry: Registry, refused: int, reason: str):
    """The version, the rule against it, and --force."""
    model = f"refused-{refused}"
    line = registry.promotions(model)
    for checkpoint, against, verdict in (("a", "x", "promote"), ("b", "a", "refuse"), ("c", "x", "promote")):
        put_version(registry, model, checkpoint, against=against, verdict=verdict)
    line.promote(1, reason="first", by=ANNA)
    put_version(registry, model, "d", against="a")
    if refused == 1:
        line.promote(4, reason="better", by=ANNA)
    with pytest.raises(PromotionRefused) as refusal:
        line.promote(refused, reason="why not", by=ANNA)
    assert str(refusal.value) == f"{model} {reason}. Use --force with a reason if you want to promote it anyway"


def test_a_change_in_progress_on_another_machine_is_not_overwritten(registry: Registry):
    """Its record is there in place of ours: no alias moves."""
    _three(registry, "begun")
    version = put_version(registry, "begun", "d", against="c")
    other = (
        registry.promotions("begun")
        .state()
        .history[-1]
        .model_copy(update={"number": 4, "champion": 4, "replaced": 3, "reason": "other"})
    )

    class Overtaken:
        """An MLflow client that another machine writes right after."""

        def __getattr__(self, name: str) -> Any:
            return getattr(registry.client, name)

        def set_registered_model_tag(self, model: str, key: str, value: str) -> None:
            registry.client.set_registered_model_tag(model, key, value)
            registry.client.set_registered_model_tag(model, key, other.model_dump_json())

    overtaken = PromotionLog(Overtaken(), "begun", nullcontext())  # type: ignore[arg-type]
    with pytest.raises(RegistryError, match=r"^another promotion of model begun is in progress\. Try again$"):
        overtaken.promote(version, reason="gates", by=ANNA)
    assert serving(registry, "begun") == (3, 2)
    assert len(registry.promotions("begun").history()) == 3


def test_the_time_of_a_change_is_utc_to_the_second(registry: Registry):
    """ISO 8601, within the minute."""
    put_version(registry, "timed", "a", against="base")
    done = registry.promotions("timed").promote(1, reason="gates", by=ANNA)
    assert done is not None
    at = datetime.fromisoformat(done.at)
    assert at.utcoffset() == timedelta(0)
    assert at.microsecond == 0
    assert abs(datetime.now(UTC) - at) < timedelta(minutes=30)


def test_a_first_promotion_records_its_arguments(registry: Registry):
    """Checks, author, flow run and verified version; no version replaced, no target of a rollback."""
    put_version(registry, "asked", "a", against="base")
    verified: list[int] = []
    line = registry.promotions("asked")
    done = line.promote(1, reason=" gates ", by=BEN, verify=verified.append)
    assert verified == [1]
    (kept,) = line.history()
    assert done == kept
    assert (kept.number, kept.replaced, kept.previous, kept.checks, kept.forced) == (1, None, None, {}, False)
    assert (kept.by, kept.reason) == (BEN, "gates")
    tags = registry.client.get_registered_model("asked").tags
    assert list(tags) == ["promotion.0001"]
    document = verify("promotion", tags["promotion.0001"])
    assert (document["model"], ChampionChange.model_validate(document["change"])) == ("asked", kept)
