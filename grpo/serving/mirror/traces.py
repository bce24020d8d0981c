"""MLflow traces of served turns, assessments of the feedback on them, and feedback of assessments.

    turn       user U | call C, result T, reply A     trace: span `turn` (U → A), its child span `C` (arguments → T)
    feedback   rating 0.5, correction X               feedback `rating` 0.5, expectation `correction` X
    page       feedback `rating` True, rationale R    feedback: rating 1, comment R

MLflow ids are derived from the ids in the log, so that a record that is sent twice is one object in MLflow.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from grpo.errors import DataError
from grpo.log.folder import name_digest
from grpo.log.records import OUTCOMES, Feedback, ServedTurn
from grpo.messages import Message
from grpo.serving.requests.feedback import CorrectedReply, to_reply

if TYPE_CHECKING:
    from mlflow.entities import Assessment, Span, TraceInfo

TURN_TAG = "grpo.turn_id"
CONVERSATION_TAG = "grpo.conversation_sha256"
"""Tag for the search of an erased conversation's traces. It is a digest because an erasure has only digests."""
NAMES = ("rating", "comment", "success", "correction", "expected_response")
"""Names of assessments that are read as feedback. `expected_response` is MLflow's own name for a correction."""
_CORRECTIONS = ("correction", "expected_response")
_FIELDS = ("rating", "comment", "success", "correction")
_SESSION, _USER, _USAGE = "mlflow.trace.session", "mlflow.trace.user", "mlflow.trace.tokenUsage"
_OWN = "grpo-"
_PREVIEW = 1000  # characters


def trace_id(turn_id: str) -> str:
    """Id of the trace of a turn."""
    return f"tr-{hashlib.sha256(turn_id.encode()).hexdigest()[:32]}"


def trace_info(turn: ServedTurn, messages: Sequence[Message], experiment_id: str) -> TraceInfo:
    """Trace of a turn with these redacted messages: session, user, token counts, and tags for filters."""
    from mlflow.entities import TraceInfo, TraceLocation, TraceState

    asked, replied = _split(messages)
    tags = {
        "mlflow.traceName": "turn",
        TURN_TAG: turn.id,
        CONVERSATION_TAG: name_digest(turn.conversation_id),
        "grpo.version": turn.model,
        "grpo.policy": turn.policy_hash,
        "grpo.arm": turn.arm,
        "grpo.status": turn.status,
        "grpo.finish_reason": turn.reason if turn.status == "answered" else turn.status,
        "grpo.latency_s": f"{turn.latency_s:.3f}",
        "grpo.consent": turn.consent,
        "grpo.licence": turn.licence,
    }
    if turn.first_token_s is not None:
        tags["grpo.first_token_s"] = f"{turn.first_token_s:.3f}"
    user = {_USER: turn.user} if turn.user else {}
    return TraceInfo(
        trace_id=trace_id(turn.id),
        trace_location=TraceLocation.from_experiment_id(experiment_id),
        request_time=_milliseconds(turn.time),
        execution_duration=round(1000 * turn.latency_s),
        state=TraceState.OK if turn.status == "answered" else TraceState.ERROR,
        request_preview=asked[-1].content[:_PREVIEW] if asked else "",
        response_preview=_text(replied[-1])[:_PREVIEW] if replied else "",
        client_request_id=turn.id,
        trace_metadata={_SESSION: turn.conversation_id, **user, _USAGE: json.dumps(_usage(turn))},
        tags={name: value for name, value in tags.items() if value},
    )


def spans(turn: ServedTurn, messages: Sequence[Message]) -> list[Span]:
    """Span of the turn, and one span per tool call that the server has run.

    The log has no times of calls, so their spans have the start and the end of the turn.
    """
    asked, replied = _split(messages)
    reply = replied[-1:] if turn.status == "answered" else ()
    root = {
        "mlflow.spanType": "AGENT",
        "mlflow.spanInputs": {"messages": [message.to_template() for message in asked]},
        "mlflow.spanOutputs": {"choices": [{"message": message.to_template()} for message in reply]},
        "mlflow.chat.tokenUsage": _usage(turn),
        "gen_ai.response.model": turn.model,
    }
    made = [_span(turn, 0, "turn", root)]
    for number, (name, arguments, result) in enumerate(_run_calls(replied), start=1):
        call = {"mlflow.spanType": "TOOL", "mlflow.spanInputs": arguments, "mlflow.spanOutputs": result}
        made.append(_span(turn, number, name, call))
    return made


def assessments(feedback: Feedback) -> list[Assessment]:
    """Assessments of redacted feedback, one per field that is set. Expected outcomes and worlds are left out."""
    from mlflow.entities import AssessmentSource, Expectation
    from mlflow.entities import Feedback as Assessed

    made = []
    for name in _FIELDS:
        if (value := getattr(feedback, name)) is None:
            continue
        kind = Expectation if name in _CORRECTIONS else Assessed
        time = _milliseconds(feedback.time)
        assessment = kind(
            name=name,
            value=_to_page(value),
            source=AssessmentSource(source_type="HUMAN", source_id="grpo"),
            metadata={} if feedback.turn_id else {_SESSION: feedback.conversation_id},
            create_time_ms=time,
            last_update_time_ms=time,
        )
        assessment.assessment_id = _OWN + _digest(f"{feedback.id}\0{name}")[:40]
        made.append(assessment)
    return made


def _to_page(value: Any) -> Any:
    """Value of a field as JSON. A correction becomes a text, or a mapping if it has calls."""
    if not isinstance(value, Message):
        return value
    correction = CorrectedReply.from_message(value)
    return correction if isinstance(correction, str) else correction.model_dump()


def is_from_page(assessment: Assessment) -> bool:
    """True for a valid assessment by a person. One that `assessments` made counts only after a person has edited it."""
    edited = assessment.last_update_time_ms != assessment.create_time_ms
    own = str(assessment.assessment_id).startswith(_OWN)
    human = assessment.source.source_type == "HUMAN" and assessment.valid is not False
    return assessment.name in NAMES and human and (edited or not own)


def feedback_record(assessment: Assessment, info: TraceInfo) -> Feedback:
    """Feedback record of an assessment: on the trace's turn, or on the conversation if its metadata has a session.

    Everybody with a login of the tracking server may judge every conversation. The mirror passes on an outcome only if
    its settings allow it. The record's id is derived from the assessment's id and its last update. If the trace is not
    of a served turn, the record gets the trace's own ids, which are in no log. Raises `DataError` if the value does not
    fit the name.
    """
    session = (assessment.metadata or {}).get(_SESSION)
    turn_id = info.tags.get(TURN_TAG, info.trace_id)
    value, updated = _value(assessment), assessment.last_update_time_ms
    fields = {"correction" if assessment.name in _CORRECTIONS else assessment.name: value}
    if assessment.rationale and assessment.name != "comment":
        fields["comment"] = assessment.rationale
    return Feedback(
        id=_digest(f"mlflow\0{assessment.assessment_id}\0{updated}")[:32],
        time=datetime.fromtimestamp(updated / 1000, UTC),
        conversation_id=session or info.trace_metadata.get(_SESSION) or info.trace_id,
        turn_id=turn_id if session is None else None,
        source="mlflow",
        scopes=("admin", "outcomes") if assessment.name in OUTCOMES else ("admin",),
        **fields,
    )


def _value(assessment: Assessment) -> Any:
    """Value in the form of a record: a switch becomes a rating of 0 or 1, and `yes` or `no` an outcome."""
    name, value = assessment.name, assessment.value
    if name == "rating" and isinstance(value, bool | int | float) and 0 <= value <= 1:
        return float(value)
    if name == "success" and (isinstance(value, bool) or value in ("yes", "no")):
        return value in (True, "yes")
    if name in _CORRECTIONS and isinstance(value, str | dict):
        try:
            return to_reply(value if isinstance(value, str) else CorrectedReply.model_validate(value))
        except ValidationError as error:
            raise DataError(f"assessment {assessment.assessment_id}: {name} is not a reply: {error}") from error
    if name == "comment" and isinstance(value, str):
        return value
    raise DataError(
        f"assessment {assessment.assessment_id} of trace {assessment.trace_id}: {name} is {value!r}. A rating is a "
        "number from 0 to 1 or a switch, success is a switch, yes or no, "
        "a comment is a text, and a correction a text or content and tool_calls"
    )


def _split(messages: Sequence[Message]) -> tuple[Sequence[Message], Sequence[Message]]:
    """Messages of the request, and the messages from the model's first one to the end."""
    start = next((place for place, message in enumerate(messages) if message.role == "assistant"), len(messages))
    return messages[:start], messages[start:]


def _run_calls(replied: Sequence[Message]) -> list[tuple[str, Mapping[str, Any], str]]:
    """Name, arguments and result of each call with a result. Calls of the client's tools have none in the turn."""
    results = [message.content for message in replied if message.role == "tool"]
    calls = [call for message in replied for call in message.tool_calls]
    return [(call.name, call.arguments, result) for call, result in zip(calls, results, strict=False)]


def _span(turn: ServedTurn, number: int, name: str, attributes: Mapping[str, Any]) -> Span:
    from mlflow.entities import Span

    start = _milliseconds(turn.time) * 1_000_000
    attributes = {"mlflow.traceRequestId": trace_id(turn.id), **attributes}
    return Span.from_dict(
        {
            "trace_id": trace_id(turn.id),
            "span_id": _digest(f"{turn.id}\0{number}")[:16],
            "parent_span_id": _digest(f"{turn.id}\0{0}")[:16] if number else "",
            "name": name,
            "start_time_unix_nano": start,
            "end_time_unix_nano": start + round(turn.latency_s * 1e9),
            "status": {"code": "STATUS_CODE_OK" if turn.status == "answered" else "STATUS_CODE_ERROR", "message": ""},
            "attributes": {key: json.dumps(value) for key, value in attributes.items()},
        }
    )


def _usage(turn: ServedTurn) -> dict[str, int]:
    """Input tokens of the last reply, which include earlier turns, and generated tokens."""
    generated = int(turn.loss_mask.sum())
    total = (turn.turns[0].start if turn.turns else 0) + len(turn.token_ids)
    return {"input_tokens": total - generated, "output_tokens": generated, "total_tokens": total}


def _text(message: Message) -> str:
    return "\n".join(filter(None, (message.content, *map(str, message.tool_calls))))


def _milliseconds(time: datetime) -> int:
    return round(1000 * time.timestamp())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
