"""HH-RLHF: pairs of dialogues as text, gzipped."""

from __future__ import annotations

import gzip
import json
import re

import pytest

from grpo.errors import DataError
from grpo.scenarios.reward_data import read_pairs


def dialogue(*turns):
    """A dialogue as text, of lines `H:` and `A:`."""
    return "".join(f"\n\n{ {'H': 'Human', 'A': 'Assistant'}[turn[0]] }: {turn[2:]}" for turn in turns)


def source(tmp_path, *pairs):
    """A folder with these pairs in a gzipped file."""
    rows = [{"chosen": chosen, "rejected": rejected} for chosen, rejected in pairs]
    with gzip.open(tmp_path / "test.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return tmp_path


def test_the_last_turn_is_compared_after_all_others(tmp_path):
    """Two assistant turns in a row stay two."""
    before = ("H:Hi\n\nthere", "A:Yes?", "A:Well?", "H:Bye")
    (pair,) = read_pairs(
        "hh_rlhf_harmless", source(tmp_path, (dialogue(*before, "A:Bye."), dialogue(*before, "A:No.")))
    ).items
    assert [message.role for message in pair.prompt] == ["user", "assistant", "assistant", "user"]
    assert pair.prompt[0].content == "Hi\n\nthere"
    assert (pair.chosen.content, pair.rejected.content) == ("Bye.", "No.")


def test_pairs_that_cannot_be_compared_are_counted(tmp_path):
    """An empty reply, a difference before the last turn, a human at the end, no dialogue at all, equal ones."""
    good = dialogue("H:Hi", "A:Yes?")
    parsed = read_pairs(
        "hh_rlhf_harmless",
        source(
            tmp_path,
            (dialogue("H:Hi", "A:"), good),
            (dialogue("H:Hi", "A:Hm", "A:Ok"), good),
            (dialogue("H:Hi"), good),
            ("Hi", good),
            (good, good),
            (good, dialogue("H:Hi", "A:No.")),
        ),
    )
    assert (parsed.records, len(parsed.items)) == (6, 1)
    assert parsed.reasons == {
        "chosen: reply is empty": 1,
        "dialogues differ before the last reply": 1,
        "no reply": 1,
        "no speaker": 1,
        "chosen and rejected are the same": 1,
    }


def test_pairs_of_one_prompt_are_one_group(tmp_path):
    """A split keeps them together."""
    pairs = [
        (dialogue(f"H:{h}", f"A:{a}"), dialogue(f"H:{h}", "A:No.")) for h, a in (("Hi", "1"), ("Hi", "2"), ("Ho", "1"))
    ]
    groups = [pair.group for pair in read_pairs("hh_rlhf_harmless", source(tmp_path, *pairs)).items]
    assert groups[0] == groups[1] != groups[2]


def test_a_damaged_or_missing_file_is_an_error(tmp_path):
    """A truncated gzip file and a folder without files raise."""
    with pytest.raises(DataError, match=r"no \*\.jsonl or \*\.jsonl\.gz in"):
        read_pairs("hh_rlhf_harmless", tmp_path)
    path = source(tmp_path, (dialogue("H:Hi", "A:a"), dialogue("H:Hi", "A:b"))) / "test.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(DataError, match=r"test\.jsonl\.gz is damaged"):
        read_pairs("hh_rlhf_harmless", tmp_path)


def test_every_published_pair_is_read_or_quarantined(published):
    """1612 pairs: in 4 the chosen reply is empty, 1 differs before the last reply."""
    folder = published("hh_rlhf_harmless")
    (path,) = folder.glob("*.gz")
    with gzip.open(path, "rt") as file:
        raw = [json.loads(line) for line in file]
    empty = sum(re.search(r"\n\nAssistant:\s*$", row["chosen"]) is not None for row in raw)
    different = sum(
        row["chosen"].rpartition("\n\nAssistant:")[0] != row["rejected"].rpartition("\n\nAssistant:")[0] for row in raw
    )
    parsed = read_pairs("hh_rlhf_harmless", folder)
    assert (parsed.records, len(parsed.items)) == (len(raw), len(raw) - empty - different) == (1612, 1607)
    assert parsed.reasons == {"chosen: reply is empty": empty, "dialogues differ before the last reply": different}
