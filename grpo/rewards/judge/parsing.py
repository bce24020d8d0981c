"""Strict parsing of the judge's answer: one score and one reason for each label, or an error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo.errors import Unscored
from grpo.strict_json import NotStrictJSON, decode

_FIELDS = {"label", "score", "reason"}
_MAX_REASON_CHARS = 600
_SHOWN = 60
"""Characters of a wrong value that a message shows."""


class MalformedVerdict(Unscored):
    """The judge did not give each label one score and one reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Score of one conversation, with its reason."""

    score: float  # in [0, 1]
    reason: str


def parse_verdicts(answer: str, labels: Sequence[str]) -> dict[str, Verdict]:
    """Verdicts by label. Raises `MalformedVerdict` unless the answer is the JSON object asked for, and only that.

    {"scores": [{"label": "QVX", "score": 0.4, "reason": "Polite, but invents a date."}]}
    """
    try:
        document = decode(answer)
    except NotStrictJSON as error:
        raise MalformedVerdict(f"not one JSON object: {error}; it begins {_show(answer)}") from None
    if not isinstance(document, dict) or set(document) != {"scores"} or not isinstance(document["scores"], list):
        raise MalformedVerdict(f'expected {{"scores": [...]}} alone, got {_show(document)}')
    verdicts: dict[str, Verdict] = {}
    for item in document["scores"]:
        label, verdict = _parse_item(item)
        if label not in labels:
            raise MalformedVerdict(f"label {_show(label)} is unknown; the labels are {', '.join(labels)}")
        if label in verdicts:
            raise MalformedVerdict(f"label {label} is scored twice")
        verdicts[label] = verdict
    if missing := [label for label in labels if label not in verdicts]:
        raise MalformedVerdict(f"no score for {', '.join(missing)}")
    return verdicts


def _parse_item(item: Any) -> tuple[str, Verdict]:
    if not isinstance(item, dict) or set(item) != _FIELDS:
        raise MalformedVerdict(f"expected label, score and reason, got {_show(item)}")
    label, score, reason = item["label"], item["score"], item["reason"]
    if not isinstance(label, str):
        raise MalformedVerdict(f"label {_show(label)} is not a text")
    if isinstance(score, bool) or not isinstance(score, (int, float)) or not (math.isfinite(score) and 0 <= score <= 1):
        raise MalformedVerdict(f"score {_show(score)} of {_show(label)} is not a number from 0 to 1")
    if not isinstance(reason, str) or not 0 < len(reason.strip()) <= _MAX_REASON_CHARS:
        raise MalformedVerdict(
            f"reason {_show(reason)} of {_show(label)} is not a text of 1 to {_MAX_REASON_CHARS} characters"
        )
    return label, Verdict(score=float(score), reason=reason.strip())


def _show(value: Any) -> str:
    return repr(value)[:_SHOWN]
