"""Contrast sets of data/contrast: texts that a reward must tell apart. What is held out took no part in making one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import yaml

from tests.places import ROOT

CONTRAST = ROOT / "data" / "contrast"
Side = Literal["development", "held_out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request, its subject as a noun phrase, and a reply that does what it asks."""

    kind: str
    asked: str
    topic: str
    reply: str


def questions(name: Literal["harmless", "harmful"], side: Side) -> list[Question]:
    """The requests of one half of a set."""
    return [
        Question(kind=kind["kind"], asked=asked, topic=topic, reply=reply)
        for kind in _read(name)
        for asked, topic, reply in kind[side]
    ]


def refusals(side: Side, *, of: list[Question]) -> dict[str, list[tuple[Question, str]]]:
    """Each of the questions with a full refusal of it, by family of wordings; a family's wordings take turns."""
    return {
        family["family"]: [
            (question, family["replies"][place % len(family["replies"])].format(topic=question.topic))
            for place, question in enumerate(of)
        ]
        for family in _read("refusals")
        if family["side"] == side
    }


def wordings(side: Side) -> list[str]:
    """Each wording of a refusal once, on a subject of the harmless questions."""
    topics = [question.topic for question in questions("harmless", side)]
    replies = [reply for family in _read("refusals") if family["side"] == side for reply in family["replies"]]
    return [reply.format(topic=topics[place % len(topics)]) for place, reply in enumerate(replies)]


def answers(side: Side) -> list[str]:
    """Replies that are not refusals: those that look like one, and those to the harmless and harmful questions."""
    alike = [reply for kind in _read("no_refusals") if kind["side"] == side for reply in kind["replies"]]
    return [*alike, *(question.reply for name in ("harmless", "harmful") for question in questions(name, side))]


def _read(name: str) -> list[dict[str, Any]]:
    return yaml.safe_load((CONTRAST / f"{name}.yaml").read_text(encoding="utf-8"))
