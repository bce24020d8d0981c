"""PandaLM's test set: two replies to an instruction, compared by three annotators (1, 2, or 0 for a tie).

The reply that the majority prefers is chosen. A record is quarantined if there is no majority for one reply, if a reply
is a JSON boolean (six records), or if a reply is empty.

https://github.com/WeOpenML/PandaLM, Apache-2.0
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from grpo.contrib.datasets.parts import find_parts
from grpo.messages import Message
from grpo.scenarios.readers.files.json_file import read_json
from grpo.scenarios.records import SourceRecord, convert_records

_PARTS = {"testset-v1": ("testset-v1.json", "data/testset-v1.json")}
Vote = Literal[0, 1, 2]


class _Comparison(BaseModel):
    idx: int
    motivation_app: str
    instruction: str
    input: str
    response1: str | bool
    response2: str | bool
    annotator1: Vote
    annotator2: Vote
    annotator3: Vote


def read_pandalm_pairs(folder: Path, parts: Sequence[str] = ()) -> Iterator[SourceRecord]:
    """Read the parts (default `testset-v1`), one record per comparison. `line` is the comparison's number.

    Raises `DataError` if a file is missing or broken.
    """
    for part in find_parts(folder, parts or ("testset-v1",), _PARTS):
        yield from convert_records(read_json(part.path), _Comparison, _pair)


def _pair(comparison: _Comparison, _: int) -> dict[str, Any]:
    replies = {1: comparison.response1, 2: comparison.response2}
    for number, reply in replies.items():
        if not isinstance(reply, str):
            raise ValueError(f"reply is not text: response{number} is {reply}")
    votes = (comparison.annotator1, comparison.annotator2, comparison.annotator3)
    winner, count = Counter(votes).most_common(1)[0]
    if winner == 0 or count == 1:
        raise ValueError(f"tie: the votes are {', '.join(map(str, votes))}")
    prompt = "\n\n".join(part for part in (comparison.instruction, comparison.input) if part.strip())
    return {
        "id": f"pandalm-{comparison.idx}",
        "group": f"pandalm-{hashlib.sha256(prompt.encode()).hexdigest()[:16]}",
        "prompt": [Message(role="user", content=prompt)],
        "chosen": Message(role="assistant", content=str(replies[winner])),
        "rejected": Message(role="assistant", content=str(replies[3 - winner])),
        "category": comparison.motivation_app,
        "source": "pandalm",
        "licence": "Apache-2.0",
    }
