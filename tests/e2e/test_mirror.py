"""The mirror of served conversations in MLflow, against a real tracking server that dies and comes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from grpo.config.serving import MirrorSettings, ServiceSettings
from grpo.log.folder import ServedLog
from grpo.log.join import Joined, join
from grpo.messages import Message
from grpo.serving.mirror.trace_store import TraceStore
from grpo_local.login import PASSWORD, USERNAME
from grpo_local.managed_process import ManagedProcess
from tests import waiting
from tests.e2e.served import LOGIN, basic, mlflow_service
from tests.grpo.serving.chat_servers import ChatServer, chat_server

pytestmark = pytest.mark.e2e

MAIL = {"role": "user", "content": "My name is Anna Bell, mail anna@example.org. Where is my order 1234?"}
PATIENCE_S = 240.0
wait_for = partial(waiting.until, "the mirror", patience_s=PATIENCE_S)


@pytest.fixture(scope="module")
def tracking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagedProcess]:
    home = tmp_path_factory.mktemp("mlflow")
    service = mlflow_service(home, {}, database=f"sqlite:///{home}/mlflow.db")
    with service.shared():
        yield service


@pytest.fixture(autouse=True)
def _one_attempt(monkeypatch: pytest.MonkeyPatch, tracking: ManagedProcess) -> None:
    """MLflow's client repeats a call that was in progress for a minute, before the mirror counts its failure."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    for name, value in zip((USERNAME, PASSWORD), basic(LOGIN), strict=True):
        monkeypatch.setenv(name, value)
    tracking.start()  # after a test that failed while it was dead
    tracking.wait()


@pytest.fixture
def experiment(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


@pytest.fixture
def server(tmp_path: Path, tracking: ManagedProcess, experiment: str) -> Iterator[ChatServer]:
    with mirrored(tmp_path, tracking, experiment) as running:
        yield running


def mirrored(folder: Path, tracking: ManagedProcess, experiment: str, *, outcomes: bool = False) -> Any:
    mirror = MirrorSettings(experiment=experiment, every_s=0.1, feedback_s=0.2, outcomes=outcomes)
    return chat_server(folder, mirror=mirror, tracking_uri=tracking.url, service=ServiceSettings(consent="training"))


def ask(client: openai.OpenAI, *messages: dict[str, str], **body: Any) -> Any:
    return client.chat.completions.create(model="clerk", messages=list(messages) or [MAIL], extra_body=body)


def traces(tracking: ManagedProcess, experiment: str, condition: str | None = None) -> list[Any]:
    """Traces as a person searches them, with spans and assessments."""
    import mlflow

    mlflow.set_tracking_uri(tracking.url)
    known = mlflow.get_experiment_by_name(experiment)
    if known is None:
        return []
    return mlflow.search_traces(
        locations=[known.experiment_id], filter_string=condition, return_type="list", order_by=["timestamp_ms ASC"]
    )


def metric(server: ChatServer, name: str, *, reader: str = "shop") -> float:
    return float(httpx.get(f"{server.url}/v1/metrics", headers=server.headers(reader), timeout=60).json()[name])


def joined(server: ChatServer) -> Joined:
    return join(ServedLog(server.folder / "log").read())


def page(tracking: ManagedProcess, method: str, path: str, **body: Any) -> dict[str, Any]:
    """A request of MLflow's page."""
    address = f"{tracking.url}/ajax-api/3.0/mlflow/traces/{path}"
    response = httpx.request(method, address, json=body, auth=basic(LOGIN), timeout=60)
    response.raise_for_status()
    return dict(response.json() or {})


def assess(tracking: ManagedProcess, trace_id: str, name: str, **value: Any) -> str:
    """Assess a trace as the page does; returns the id of the assessment."""
    source = {"source_type": "HUMAN", "source_id": "anna"}
    assessment = {"assessment_name": name, "trace_id": trace_id, "source": source, **value}
    created = page(tracking, "POST", f"{trace_id}/assessments", assessment=assessment)
    return str(created["assessment"]["assessment_id"])


def test_a_conversation_is_a_session_with_personal_data_redacted(
    server: ChatServer, tracking: ManagedProcess, experiment: str
):
    """Two turns of one session: version, arm, usage, redacted texts, and the feedback of the log as assessments."""
    client = server.client()
    first = ask(client, user="anna")
    second = ask(client, {"role": "user", "content": "Thanks, Anna"}, conversation_id=first.conversation_id)
    feedback = {"conversation_id": first.conversation_id, "turn_id": second.id, "rating": 0.5}
    client.post("/feedback", body={**feedback, "comment": "ask anna@example.org"}, cast_to=object)
    client.post("/feedback", body={"conversation_id": first.conversation_id, "success": True}, cast_to=object)
    session = f"metadata.`mlflow.trace.session` = '{first.conversation_id}'"
    wait_for(lambda: metric(server, 'grpo_mirror_records_total{result="feedback"}') == 2)
    one, two = traces(tracking, experiment, session)
    assert one.info.tags["grpo.version"] == "clerk/1"
    assert one.info.tags["grpo.arm"] == "champion"
    assert one.info.tags["grpo.finish_reason"] == first.choices[0].finish_reason
    assert one.info.trace_metadata["mlflow.trace.user"] == server.turns()[0].user
    for trace, response in ((one, first), (two, second)):
        usage = response.usage
        assert trace.info.token_usage["input_tokens"] == usage.prompt_tokens
        assert trace.info.token_usage["output_tokens"] == usage.completion_tokens
    question = one.data.spans[0].inputs["messages"][-1]["content"]
    assert "order 1234" in question
    assert "[email]" in question
    texts = str([trace.to_dict() for trace in (one, two)])
    assert "anna" not in texts.lower().replace("anna'", "")
    assert {item.name: item.value for item in two.info.assessments} == {"rating": 0.5, "comment": "ask [email]"}
    assert {item.name: item.value for item in one.info.assessments} == {"success": True}
    wait_for(lambda: metric(server, "grpo_mirror_records_waiting") == 0)


def rate_three(client: openai.OpenAI) -> None:
    for _ in range(3):
        reply = ask(client)
        body = {"conversation_id": reply.conversation_id, "turn_id": reply.id, "rating": 1}
        client.post("/feedback", body=body, cast_to=object)


def test_a_dead_tracking_server_stops_no_turn_and_is_caught_up_once(
    tmp_path: Path, tracking: ManagedProcess, experiment: str
):
    """Turns and feedback go on while it is killed; then each is there once, also after a restart of the mirror."""
    with mirrored(tmp_path, tracking, experiment) as server:
        client = server.client()
        ask(client)
        wait_for(lambda: len(traces(tracking, experiment)) == 1)
        wait_for(lambda: metric(server, "grpo_mirror_records_waiting") == 0)  # the answer about it has arrived, too
        tracking.stop(at_once=True)
        rate_three(client)
        wait_for(lambda: metric(server, "grpo_mirror_failures_total") > 0)
        wait_for(lambda: metric(server, "grpo_mirror_records_waiting") == 6)
        tracking.start()
        tracking.wait()
        wait_for(lambda: metric(server, "grpo_mirror_records_waiting") == 0)
        ids = [turn.id for turn in server.turns()]
    for path in (tmp_path / "log" / "mirror").glob("*.json"):
        path.unlink()  # as after a kill before any position was written
    with mirrored(tmp_path, tracking, experiment) as server:
        wait_for(lambda: metric(server, 'grpo_mirror_records_total{result="feedback"}', reader="again") == 3)
        mirrored_traces = traces(tracking, experiment)
    assert Counter(trace.info.tags["grpo.turn_id"] for trace in mirrored_traces) == Counter(ids)
    assert [len(trace.info.assessments) for trace in mirrored_traces] == [0, 1, 1, 1]
    assert all(len(trace.data.spans) == 1 for trace in mirrored_traces)


def test_an_outcome_of_the_page_counts_only_where_the_server_is_told_so(
    tmp_path: Path, tracking: ManagedProcess, experiment: str
):
    """Its rating and comment do; with the setting the outcome that was given before is read as well."""
    with mirrored(tmp_path, tracking, experiment) as server:
        ask(server.client())
        (trace,) = wait_for(lambda: traces(tracking, experiment))
        assess(tracking, trace.info.trace_id, "success", feedback={"value": "yes"})
        assess(tracking, trace.info.trace_id, "rating", feedback={"value": True}, rationale="quick")
        wait_for(lambda: joined(server).counts.joined_feedback == 1)
        judgement = next(iter(joined(server).conversations[0].turn_judgements.values()))
        assert (judgement.rating, judgement.comment, judgement.success) == (1.0, "quick", None)
    with mirrored(tmp_path, tracking, experiment, outcomes=True) as server:
        wait_for(lambda: joined(server).counts.joined_feedback == 2)
        assert joined(server).conversations[0].judgement.success is True


def test_assessments_of_people_become_feedback_and_the_last_edit_wins(
    tmp_path: Path, tracking: ManagedProcess, experiment: str
):
    """Given, edited and deleted in the page; an assessment of a judge does not count."""
    with mirrored(tmp_path, tracking, experiment, outcomes=True) as server:
        reply = ask(server.client())
        (trace,) = wait_for(lambda: traces(tracking, experiment))
        name = trace.info.trace_id
        rating = assess(tracking, name, "rating", feedback={"value": True}, rationale="quick")
        outcome = assess(tracking, name, "success", feedback={"value": "yes"})
        assess(tracking, name, "expected_response", expectation={"value": "It is on its way."})
        assess(tracking, name, "rating", feedback={"value": 7})
        source = {"source_type": "LLM_JUDGE", "source_id": "judge"}
        assess(tracking, name, "rating", feedback={"value": 0}, source=source)
        wait_for(lambda: joined(server).counts.joined_feedback == 3)
        wait_for(lambda: metric(server, 'grpo_mirror_records_total{result="refused"}') == 1)
        (conversation,) = joined(server).conversations
        judgement = conversation.turn_judgements[reply.id.removeprefix("chatcmpl-")]
        assert (judgement.rating, judgement.comment, judgement.success) == (1.0, "quick", True)
        assert judgement.correction == Message(role="assistant", content="It is on its way.")
        edited = {"feedback": {"value": False}, "rationale": "slow"}
        page(tracking, "PATCH", f"{name}/assessments/{rating}", assessment=edited, update_mask="feedback,rationale")
        page(tracking, "DELETE", f"{name}/assessments/{outcome}")
        wait_for(lambda: joined(server).counts.joined_feedback == 4)
        (conversation,) = joined(server).conversations
        judgement = conversation.turn_judgements[reply.id.removeprefix("chatcmpl-")]
        assert (judgement.rating, judgement.comment) == (0.0, "slow")
        assert judgement.success is True  # what was read stays
        assert joined(server).counts.duplicate_feedback == 0


def test_an_assessment_of_a_foreign_trace_is_quarantined(server: ChatServer, tracking: ManagedProcess, experiment: str):
    """Its conversation is in no log: kept, with the reason, as feedback of the API is. Retention leaves the trace."""
    from mlflow.tracing.client import TracingClient

    ask(server.client())
    (own,) = wait_for(lambda: traces(tracking, experiment))
    foreign = replace(own.info, trace_id=f"tr-{'0' * 32}", trace_metadata={}, tags={})
    TracingClient(tracking.url).start_trace(foreign)
    assess(tracking, foreign.trace_id, "rating", feedback={"value": 1})
    (quarantined,) = wait_for(lambda: joined(server).quarantined)
    assert quarantined.reason == "unknown conversation"
    assert quarantined.feedback.source == "mlflow"
    TraceStore(tracking.url, experiment).delete(
        f"trace.timestamp_ms < {own.info.request_time + 1}"
    )  # as retention does
    assert traces(tracking, experiment) == []  # the foreign one has no spans, and is not listed
    assert TracingClient(tracking.url).get_trace_info(foreign.trace_id).trace_id == foreign.trace_id


def test_an_erased_conversation_leaves_no_trace(server: ChatServer, tracking: ManagedProcess, experiment: str):
    """The traces of the conversation go; another one and traces of others stay."""
    client = server.client()
    erased, kept = ask(client), ask(client)
    wait_for(lambda: len(traces(tracking, experiment)) == 2)
    httpx.delete(
        f"{server.url}/v1/conversations/{erased.conversation_id}", headers=server.headers(), timeout=60
    ).raise_for_status()
    (trace,) = wait_for(lambda: found if len(found := traces(tracking, experiment)) == 1 else None)
    assert trace.info.trace_metadata["mlflow.trace.session"] == kept.conversation_id
