"""CaSiNo: two campers divide three packages each of food, water and firewood.

The camper with the first line is the user, the other one the agent.

    the user's priorities and reasons     → goal
    the agent's priorities and reasons    → context
    supplies, points, both priorities     → world
    the deal and the points of both       → expected.state
    the dialogue to the agent's last line → a labelled reply: the user's satisfaction, the agent's points

A package of high, medium and low priority is worth 5, 4 and 3 points, and walking away is worth 5. If the points of a
record do not follow from its deal, it is quarantined. Difficulty counts the priorities that both share (none, one, all
three).

https://github.com/kushalchawla/CaSiNo, CC-BY-4.0
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from grpo.contrib.datasets.parts import find_parts, read_parts
from grpo.messages import Message
from grpo.scenarios.readers.files.json_file import read_json
from grpo.scenarios.records import SourceRecord, convert_records, difficulty_by_count

_POINTS = {"High": 5, "Medium": 4, "Low": 3}
_WALK_AWAY = 5
_PARTS = {
    name: (f"casino_{name}.json", f"split/casino_{name}.json", f"data/split/casino_{name}.json")
    for name in ("train", "valid", "test")
}
_DEFAULT = ("train", "valid")


class _Line(BaseModel):
    text: str
    task_data: dict[str, Any]
    id: str


class _Outcome(BaseModel):
    points_scored: int
    satisfaction: str


class _Camper(BaseModel):
    value2issue: dict[str, str]
    value2reason: dict[str, str]
    outcomes: _Outcome


class _Dialogue(BaseModel):
    dialogue_id: int
    chat_logs: tuple[_Line, ...] = Field(min_length=2)
    participant_info: dict[str, _Camper]

    @property
    def user(self) -> str:
        """Camper with the first line."""
        return self.chat_logs[0].id

    @property
    def agent(self) -> str:
        """The other camper."""
        others = sorted(set(self.participant_info) - {self.user})
        if len(others) != 1 or self.user not in self.participant_info:
            raise ValueError(f"not two campers: {', '.join(sorted(self.participant_info))}")
        return others[0]


def read_casino_negotiation(folder: Path, parts: Sequence[str] = ()) -> Iterator[SourceRecord]:
    """Read the parts (default `train` and `valid`), one record per dialogue.

    Raises `DataError` if a file is missing or broken.
    """
    places = find_parts(folder, parts or _DEFAULT, _PARTS)
    yield from read_parts(places, lambda part: convert_records(read_json(part.path), _Dialogue, _scenario))


def read_casino_negotiation_labels(folder: Path, parts: Sequence[str] = ()) -> Iterator[SourceRecord]:
    """Read the same dialogues as labelled replies, with the user's satisfaction as label and the agent's points as
    score.
    """
    for part in find_parts(folder, parts or _DEFAULT, _PARTS):
        for record in convert_records(read_json(part.path), _Dialogue, _label):
            if record.data is not None:
                record.data["split"] = part.split
            yield record


def _scenario(dialogue: _Dialogue, _: int) -> dict[str, Any]:
    user, agent = (dialogue.participant_info[name] for name in (dialogue.user, dialogue.agent))
    shared = sum(user.value2issue[rank] == agent.value2issue[rank] for rank in _POINTS)
    return {
        "id": f"casino-{dialogue.dialogue_id}",
        "topic": "camping supplies",
        "domain": "sales",
        "goal": _priorities(user),
        "context": _priorities(agent),
        "world": {
            "supplies": dict.fromkeys(sorted(user.value2issue.values()), 3),
            "points": {**_POINTS, "walk_away": _WALK_AWAY},
            "priorities": {"user": user.value2issue, "agent": agent.value2issue},
        },
        "expected": {"state": _outcome(dialogue)},
        "metadata": {
            "category": "negotiation",
            "difficulty": difficulty_by_count(shared, easy=0, medium=1),
            "source": "casino",
            "licence": "CC-BY-4.0",
        },
    }


def _label(dialogue: _Dialogue, _: int) -> dict[str, Any]:
    messages = [
        Message(role="user" if line.id == dialogue.user else "assistant", content=_text(line))
        for line in dialogue.chat_logs
    ]
    last = max(index for index, message in enumerate(messages) if message.role == "assistant")
    outcome = _outcome(dialogue)
    return {
        "id": f"casino-{dialogue.dialogue_id}",
        "group": f"casino-{dialogue.dialogue_id}",
        "prompt": messages[:last],
        "reply": messages[last],
        "label": dialogue.participant_info[dialogue.user].outcomes.satisfaction,
        "score": outcome["points"]["agent"],
        "category": "deal" if outcome["deal"] else "walk_away",
        "source": "casino",
        "licence": "CC-BY-4.0",
    }


def _priorities(camper: _Camper) -> str:
    ranks = (
        f"{rank} priority: {camper.value2issue[rank]}, because: {camper.value2reason[rank].strip()}" for rank in _POINTS
    )
    return "\n".join(("Divide three packages each of food, water and firewood with another camper.", *ranks))


def _text(line: _Line) -> str:
    return f"{line.text} {json.dumps(line.task_data)}" if line.text == "Submit-Deal" else line.text


def _outcome(dialogue: _Dialogue) -> dict[str, Any]:
    """The final deal, None for walking away, and the points of both, checked against the published points."""
    deal = _deal(dialogue)
    points = {}
    for role, name in (("user", dialogue.user), ("agent", dialogue.agent)):
        camper = dialogue.participant_info[name]
        value = {issue: _POINTS[rank] for rank, issue in camper.value2issue.items()}
        points[role] = sum(value[issue] * count for issue, count in deal[role].items()) if deal else _WALK_AWAY
        if points[role] != camper.outcomes.points_scored:
            raise ValueError(f"points do not follow from the deal: {camper.outcomes.points_scored}, not {points[role]}")
    return {"deal": deal, "points": points}


def _deal(dialogue: _Dialogue) -> Mapping[str, Mapping[str, int]] | None:
    end = dialogue.chat_logs[-1].text
    if end == "Walk-Away":
        return None
    offers = [line for line in dialogue.chat_logs if line.text == "Submit-Deal"]
    if end != "Accept-Deal" or not offers:
        raise ValueError(f"no end: the dialogue ends with {end[:40]!r}")
    offer = offers[-1]
    other = dialogue.agent if offer.id == dialogue.user else dialogue.user
    shares = {offer.id: offer.task_data["issue2youget"], other: offer.task_data["issue2theyget"]}
    return {
        role: {issue: int(count) for issue, count in sorted(shares[name].items())}
        for role, name in (("user", dialogue.user), ("agent", dialogue.agent))
    }
