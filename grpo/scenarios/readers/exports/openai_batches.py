"""Output of a batch of OpenAI or Anthropic, joined with its input by `custom_id`, because it has only the replies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo.data_errors import excerpt
from grpo.scenarios.readers.exports.record_file import read_objects
from grpo.scenarios.readers.files.places import value_at
from grpo.scenarios.records import SourceRecord


def join_batch(records: Iterable[SourceRecord], path: Path) -> Iterator[SourceRecord]:
    """Output records of a batch with the requests that they answer, which are in the file `path`."""
    requests, repeated = _requests(path)
    for record in records:
        data = record.data
        if data is None:
            yield record
        elif (name := str(data.get("custom_id"))) in repeated:
            problem = f"reply to one of several requests: custom_id {excerpt(name, 80)} is in the input more than once"
            yield replace(record, data=None, raw=record.raw or excerpt(data), problem=problem)
        elif not isinstance(requests.get(name), dict):
            problem = f"reply without a request: custom_id {excerpt(data.get('custom_id'), 80)} is not in the input"
            yield replace(record, data=None, raw=record.raw or excerpt(data), problem=problem)
        elif (failure := _failure(data)) is not None:
            yield replace(record, data=None, raw=record.raw or excerpt(data), problem=failure)
        else:
            kept = {"id": data["custom_id"], "request": requests[name], "response": _reply(data)}
            yield replace(record, data=kept)


def _requests(path: Path) -> tuple[dict[str, Any], set[str]]:
    """Requests of a batch's input by `custom_id`, and the ids that several of them have.

    They fit into memory, because OpenAI allows 50,000 per batch.
    """
    requests: dict[str, Any] = {}
    repeated: set[str] = set()
    for data in (record.data for record in read_objects(path) if record.data is not None):
        if "custom_id" not in data:
            continue
        name, request = str(data["custom_id"]), data.get("body", data.get("params"))
        if name in requests and requests[name] != request:
            repeated.add(name)
        requests[name] = request
    return requests, repeated


def _reply(data: Mapping[str, Any]) -> Any:
    """Reply of an output: `response.body` of OpenAI, or `result.message` of Anthropic."""
    return value_at(data, "response.body") or value_at(data, "result.message")


def _failure(data: Mapping[str, Any]) -> str | None:
    """Reason why an output of a batch has no reply."""
    if not isinstance(_reply(data), dict):
        return f"failed request: {excerpt(data.get('error') or data.get('result'), 200)}"
    status = value_at(data, "response.status_code") or 200
    return None if status == 200 else f"failed request: status {excerpt(status, 20)}"
