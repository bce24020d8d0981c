"""Retraining against real servers: a champion, what its customers said, a reason, a run, an event that starts it."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from grpo.config.loading import load_settings
from grpo.config.pipeline import PipelineConfig
from grpo.config.retraining import RetrainConfig
from grpo.environments.support_desk.scenario_generator import Phrasebook, generate_scenarios
from grpo.evaluation.report import read_report
from grpo.log import LoggedConversation, append
from grpo.messages import Message
from grpo.retraining.reports import RetrainingReport
from grpo.scenarios.table import read_scenarios
from grpo.storage.signing import KEY, key_file
from tests.doubles import short_run
from tests.e2e.commands import Command, start
from tests.grpo.registry.making import put_into_service
from tests.places import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("server"), pytest.mark.filterwarnings("ignore")]

MODEL = "desk-again"
TRIGGER = {
    "type": "event",
    "enabled": True,
    "match": {"prefect.resource.id": "grpo.model.*"},
    "expect": ["grpo.drift-detected"],
}
"""As prefect.yaml has it under `triggers` of `retrain/nightly`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """A desk with a champion in service, and the config by which it is trained again."""

    home: Path
    config: Path
    champion_policy: str

    def log(self, conversations: list[LoggedConversation]) -> set[str]:
        """Append what its customers said, and return the ids of the scenarios."""
        logged = append(self.home / "appended", conversations)
        return {f"conversation-{ids.conversation_id}" for ids in logged if ids is not None}

    @property
    def settings(self) -> RetrainConfig:
        """The config, read."""
        return load_settings(self.config, RetrainConfig)

    def record(self) -> RetrainingReport:
        """Report of the last retraining."""
        return RetrainingReport.model_validate_json((self.home / "again" / "retraining.json").read_bytes())


@pytest.fixture(scope="module")
def desk(home: Path, server: str) -> Desk:
    """A short run registered a version, and an operator put it into service. Retrainings have another store since."""
    from grpo_flows.train import train
    from grpo_tasks.registry import registry

    base = short_run(
        home,
        name="first",
        store=str(home / "retrain-store"),
        scenarios={"limit": 16},
        training={"iterations": 1},
        evaluation={"samples": 3},
        registry={"model_name": MODEL},
    )
    (home / "first.yaml").write_text(yaml.safe_dump(base))
    retraining = {
        "name": "again",
        "pipeline": str(home / "first.yaml"),
        "conversations": [{"kind": "served", "path": str(home / "appended")}],
        "curation": {"licences": ["own"], "required_fields": ["world", "expected"]},
        "triggers": [
            {"kind": "new_conversations", "min_conversations": 1000},
            {"kind": "topic_drift", "min_conversations": 10},
            {"kind": "live_reward"},
            {"kind": "age", "days": 30},
        ],
    }
    (home / "again.yaml").write_text(yaml.safe_dump(retraining))
    version = train(PipelineConfig.model_validate({**base, "store": str(home / "first-store")})).version
    assert version is not None
    put_into_service(registry(), MODEL, version.version)
    return Desk(home=home, config=home / "again.yaml", champion_policy=version.tags["policy"])


def conversations(prefix: str, count: int, *, seed: int) -> list[LoggedConversation]:
    """Customers of the other phrasebook; every tenth did not agree to training."""
    book = Phrasebook.load(ROOT / "data" / "scenarios" / "phrasebook_demonstrations.yaml")
    cases = itertools.islice(generate_scenarios(book, seed=seed, prefix=prefix), count)
    return [
        LoggedConversation(
            id=case.id,
            time=datetime(2021, 11, 20, 8, tzinfo=UTC) + timedelta(minutes=k),
            model=f"{MODEL}/1",
            messages=tuple(
                message
                for line in case.user_responses
                for message in (Message(role="user", content=line), Message(role="assistant", content="One moment."))
            ),
            domain=case.domain,
            category=case.metadata.category,
            world=case.world,
            expected=case.expected,
            licence="own",
            consent="" if k % 10 == 9 else "training",
        )
        for k, case in enumerate(cases)
    ]


def command(desk: Desk, told: dict[str, str], *arguments: str, label: str) -> Command:
    """Start `grpo retrain`; what it prints goes to a file of this label."""
    return start("retrain", str(desk.config), *arguments, environment=told, output=desk.home / f"{label}.txt")


def environment(server: str) -> dict[str, str]:
    return {**os.environ, "PREFECT_API_URL": server, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def debug(server: str) -> dict[str, str]:
    """With a line when a stage begins."""
    return {**environment(server), "GRPO_DEBUG": "1"}


def run_until(line: str, desk: Desk, server: str) -> None:
    """Start the retraining, and kill it when it prints this."""
    started = command(desk, debug(server), label="killed")
    shown = []
    for text in started.lines():
        shown.append(text)
        if text.startswith(line):
            started.process.kill()
            started.process.join()
            return
    raise AssertionError(f"{line} never came:\n{''.join(shown)}")


def test_a_night_without_a_reason_ends_without_loading_torch(desk: Desk, server: str):
    """Exit code 0, every reason on record with what it saw, and the flow run says so by its name."""
    script = (
        "import sys\nfrom grpo_cli.app import app\n"
        "try:\n    app(['retrain', sys.argv[1]])\nexcept SystemExit as end:\n    print('exit code', end.code)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(desk.config)],
        env=environment(server), cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-2:] == ["exit code 0", "False"], done.stdout + done.stderr
    found = desk.record()
    assert found.verdict == "nothing to do"
    assert found.triggers.champion == f"{MODEL}/1"
    assert [one.reason for one in found.triggers.results] == [
        "no_champion", "new_conversations", "topic_drift", "live_reward", "age"
    ]  # fmt: skip
    [state] = states(server, "retrain")
    assert state == ("COMPLETED", "Nothing to do")


def test_a_night_without_a_trigger_needs_no_server(desk: Desk, tmp_path: Path):
    """Without a running server none is started; the triggers are the same, and the report lies in the home."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT")}
    variables |= {"GRPO_HOME": str(tmp_path), "PYTHONPATH": str(ROOT), KEY: key_file().read_text().strip()}
    code, printed = command(desk, variables, label="quiet").end()
    assert code == 0, printed
    assert "nothing to do" in printed
    report = RetrainingReport.model_validate_json((tmp_path / "again" / "retraining.json").read_bytes())
    assert (report.verdict, report.triggers.champion) == ("nothing to do", f"{MODEL}/1")
    assert not (tmp_path / "services" / "prefect.json").exists()
    assert not (tmp_path / "services" / "prefect.log").exists()


def test_a_champion_judged_again_by_the_same_code_is_what_it_was(desk: Desk):
    """It plays what it was judged on, with the same random numbers: today's mean is the registered one."""
    from grpo_flows.retrain import retrain

    asked = RetrainConfig.model_validate({**desk.settings.model_dump(), "triggers": [{"kind": "heldout_reward"}]})
    found = retrain(asked)
    numbers = found.triggers.results[-1].numbers
    assert found.verdict == "nothing to do"
    assert numbers["now"] == numbers["registered"]
    assert numbers["now"] <= numbers["high"]


def test_a_retraining_that_is_killed_goes_on_as_it_began(desk: Desk, server: str):
    """Other customers are a reason. Killed while it plays, started twice at once on a longer log: one run, one version.

    It starts from the champion, keeps what was held out, and the version says why and on what it was trained.
    """
    from grpo_tasks.registry import registry

    live = desk.log(conversations("live", 60, seed=5))
    run_until("score 0/", desk, server)
    desk.log(conversations("late", 5, seed=6))
    both = [command(desk, debug(server), label=label) for label in ("once", "twice")]
    for started in both:
        code, shown = started.end()
        assert code in (0, 3), shown  # promoted or refused
        assert "curate 0/" not in shown, "what was begun is finished, on the conversations that there were"
        trained, iteration, _ = shown.partition("iteration 1 of 1")
        assert iteration, shown
        assert "rollout is cached" in trained, "the episodes from before the kill are not played again"
        assert "rollout is computed" not in trained
    assert len(registry().client.search_model_versions(f"name = '{MODEL}'")) == 2
    found = desk.record()
    assert [one.reason for one in found.triggers.fired] == ["topic_drift"]
    assert found.triggers.curation.records == 60
    assert found.triggers.curation.rejected["consent: no consent"] == 6
    report = read_report(desk.home / "again" / "report.json")
    assert report.lineage.base_policy == desk.champion_policy
    version = registry().find(MODEL, report.lineage.run)
    assert version is not None
    assert found.version == f"{MODEL}/{version.version}"
    page = registry().client.get_model_version(MODEL, str(version.version)).tags  # for MLflow's page, not signed
    held = [one["reason"] for one in json.loads(page["retraining_triggers"]) if one["fired"]]
    assert held == ["topic_drift"]
    assert len(version.tags["conversations"]) == 64
    before, after = ids_of(desk, version="1"), ids_of(desk, version=str(version.version))
    assert before["heldout"] <= after["heldout"]
    assert not before["heldout"] & after["train"]
    assert live & after["train"]


def test_what_was_tried_is_not_tried_again_the_next_night(desk: Desk, server: str):
    """The champion of the attempt still serves, and only five customers have come since."""
    from grpo_flows.retrain import retrain
    from grpo_tasks.registry import registry

    put_into_service(registry(), MODEL, 1)
    found = retrain(desk.settings)
    assert (found.verdict, found.triggers.champion) == ("nothing to do", f"{MODEL}/1")
    numbers = {one.reason: one.numbers for one in found.triggers.results}
    assert 0 < numbers["new_conversations"]["new"] <= 5


def test_training_data_of_the_champion_does_not_fire_a_trigger(desk: Desk, server: str):
    """The newest version goes into service: of the log only what came while it was trained is new to it."""
    from grpo_flows.retrain import retrain
    from grpo_tasks.registry import registry

    client = registry().client
    newest = max(int(one.version) for one in client.search_model_versions(f"name = '{MODEL}'"))
    put_into_service(registry(), MODEL, newest)
    found = retrain(desk.settings)
    assert found.verdict == "nothing to do"
    assert found.triggers.champion == f"{MODEL}/{newest}"
    numbers = {one.reason: one.numbers for one in found.triggers.results}
    assert 0 < numbers["new_conversations"]["new"] <= 5


def test_an_event_starts_a_retraining_by_itself(desk: Desk, server: str):
    """`grpo retrain --check` finds a reason and tells; the automation of the deployment starts the run on a worker."""
    from prefect.events import DeploymentEventTrigger
    from prefect.runner.storage import LocalStorage

    from grpo_flows.retrain import retrain

    desk.log(conversations("fourth", 40, seed=8))
    settings = {**yaml.safe_load(desk.config.read_text()), "name": "told"}
    told = {**settings, "triggers": [{"kind": "age", "days": 30}]}  # the run itself has nothing to do, and is quick
    prefect("work-pool", "create", "retraining", "--type", "process", server=server)
    retrain.from_source(source=LocalStorage(str(ROOT)), entrypoint="flows/grpo_flows/retrain.py:retrain").deploy(
        name="nightly",
        work_pool_name="retraining",
        parameters={"config": told},
        triggers=[DeploymentEventTrigger.model_validate(TRIGGER)],
        job_variables={"env": {**environment(server), "PATH": os.environ["PATH"]}},
        print_next_steps=False,
        ignore_warnings=True,
    )
    before = len(states(server, "retrain"))
    with worker("retraining", server):
        trigger = "triggers=[{kind: new_conversations, min_conversations: 1}]"
        code, printed = command(desk, environment(server), "--check", "--set", trigger, label="check").end()
        assert code == 0, printed
        assert "grpo.drift-detected emitted" in printed
        deadline = time.monotonic() + 500
        while time.monotonic() < deadline:
            started = states(server, "retrain")[before:]
            if started and all(kind in ("COMPLETED", "FAILED", "CRASHED") for kind, _ in started):
                break
            time.sleep(1)
    assert states(server, "retrain")[before:] == [("COMPLETED", "Nothing to do")]


def ids_of(desk: Desk, *, version: str) -> dict[str, set[str]]:
    """Ids on each side of what a version was trained on."""
    from grpo.artifacts import ArtifactStore
    from grpo.scenarios.split import split
    from grpo_tasks.registry import registry

    tags = registry().client.get_model_version(MODEL, version).tags
    store = ArtifactStore(str(desk.home / "retrain-store"))
    table = store.path(store.folder("scenarios", tags["scenarios"])) / "scenarios.parquet"
    limit = 16 if version == "1" else None
    sides = split(table, validation_fraction=0.25, limit=limit)
    assert len(list(read_scenarios(table))) >= len(sides.train)
    return {"train": set(sides.train), "heldout": set(sides.heldout)}


def states(server: str, flow: str) -> list[tuple[str, str]]:
    """Type and name of the state of each run of a flow, oldest first."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName

    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(flow_filter=FlowFilter(name=FlowFilterName(any_=[flow])))
    ordered = sorted(runs, key=lambda run: run.created)
    return [(run.state.type.value, run.state.name) for run in ordered if run.state is not None]


def prefect(*arguments: str, server: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "prefect", *arguments],
        env=environment(server), check=True, capture_output=True, text=True, timeout=240,
    )  # fmt: skip


@contextmanager
def worker(pool: str, server: str) -> Iterator[None]:
    """A worker of this pool while the block runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool],
        env={**environment(server), "PREFECT_WORKER_QUERY_SECONDS": "1"},
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):  # one is not enough for an idle worker
            if process.poll() is None:
                os.killpg(process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=10)
        process.wait()
