"""Parts of a published data set under their publisher's names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpo.config.scenarios import PublishedSource
from grpo.contrib.datasets.parts import find_parts
from grpo.errors import DataError
from grpo.scenario import Scenario
from grpo.scenarios.ingest import ingest
from grpo.scenarios.reward_data import read_labels, read_pairs
from grpo.scenarios.sources import read_records
from grpo.scenarios.table import read_scenarios

NAMES = {name: (f"{name}.jsonl", f"published/{name}.jsonl") for name in ("train", "test")}


def gsm8k(*questions: str) -> list[dict[str, str]]:
    """Problems that all have the answer 1."""
    return [{"question": question, "answer": "One.\n#### 1"} for question in questions]


def read(kind: str, root: Path, *parts: str) -> list[Scenario]:
    """Scenarios of these parts after ingestion."""
    source = PublishedSource.model_validate({"kind": kind, "path": str(root), "parts": parts})
    ingest((source,), root / "s.parquet", root / "q.parquet", max_quarantined_fraction=0)
    return list(read_scenarios(root / "s.parquet"))


def test_both_parts_of_a_published_split_are_declared(folder: Any) -> None:
    """A question that the test part shares with the training part has leaked: its split stays open."""
    root = folder({"train.jsonl": gsm8k("a", "b"), "test.jsonl": gsm8k("B!", "c")})
    assert [(s.id, s.split) for s in read("gsm8k", root, "train", "test")] == [
        ("gsm8k-1", "train"),
        ("gsm8k-2", "train"),
        ("gsm8k-test-1", None),
        ("gsm8k-test-2", "heldout"),
    ]


def test_one_part_alone_is_split_by_the_hash(folder: Any) -> None:
    """Without a training part the published split does not apply."""
    root = folder({"test.jsonl": gsm8k("a")})
    assert [s.split for s in read("gsm8k", root, "test")] == [None]


def test_a_file_is_read_by_its_own_name(folder: Any) -> None:
    """The name is a path below the folder."""
    root = folder({"mine/some_problems.jsonl": gsm8k("a")})
    assert [s.id for s in read("gsm8k", root, "mine/some_problems.jsonl")] == ["gsm8k-some_problems-1"]


def test_a_part_is_found_where_its_publisher_has_it(folder: Any) -> None:
    """A clone of the repository is a folder too; a file beside it comes first."""
    root = folder({"published/train.jsonl": "", "published/test.jsonl": "", "test.jsonl": ""})
    parts = find_parts(root, ("train", "test"), NAMES)
    assert [str(part.path.relative_to(root)) for part in parts] == ["published/train.jsonl", "test.jsonl"]


@pytest.mark.parametrize(
    ("files", "error"),
    [
        ({"train.jsonl": ""}, r"has no test \(test\.jsonl\), dev\.txt\. There is train\. Correct the source's path"),
        ({"a/b.txt": "", ".git/config": ""}, r"has no test \(test\.jsonl\), dev\.txt\. There is a/b\.txt\. Correct"),
    ],
)
def test_missing_parts_are_one_error_that_lists_the_existing_ones(
    folder: Any, files: dict[str, str], error: str
) -> None:
    """The error lists parts by name, or else the files, without hidden folders."""
    with pytest.raises(DataError, match=error):
        find_parts(folder(files), ("test", "dev.txt"), NAMES)


LAYOUTS: dict[str, dict[str, str]] = {
    "banking77": {"test": "banking_data/test.csv", "train": "banking_data/train.csv"},
    "bitext_customer_service": {
        "test": "data/test/Bitext_Sample_Customer_Service_Testing_Dataset.csv",
        "dev": "data/dev/Bitext_Sample_Customer_Service_Validation_Dataset.csv",
    },
    "bridge_math_tutoring": {"test": "dataset/test.json", "train": "dataset/train.json"},
    "casino_negotiation": {"test": "data/split/casino_test.json", "valid": "data/split/casino_valid.json"},
    "gsm8k": {
        "test": "grade_school_math/data/test.jsonl",
        "train_socratic": "grade_school_math/data/train_socratic.jsonl",
    },
    "tau_bench_fewshot": {"airline": "few_shot_data/MockAirlineDomainEnv-few_shot.jsonl"},
    "mt_bench": {"question": "fastchat/llm_judge/data/mt_bench/question.jsonl"},
    "abcd_sample": {"abcd_sample": "data/abcd_sample.json"},
    "cima_tutoring": {"dataset": "dataset.json"},
    "bfcl_multi_turn": {
        "miss_func": "berkeley-function-call-leaderboard/bfcl_eval/data/BFCL_v4_multi_turn_miss_func.json",
        "long_context": "berkeley-function-call-leaderboard/bfcl_eval/data/BFCL_v4_multi_turn_long_context.json",
    },
    "sgd": {"test": "test/dialogues_001.json"},
    "taskmaster": {"tm4": "TM-4-2024/data/data_01.json"},
}


@pytest.mark.parametrize(("kind", "part"), [(kind, part) for kind, parts in LAYOUTS.items() for part in parts])
def test_every_data_set_names_its_parts_as_its_publisher_does(folder: Any, kind: str, part: str) -> None:
    """The part is found: the error is about its empty file."""
    root = folder({LAYOUTS[kind][part]: ""})
    source = PublishedSource.model_validate({"kind": kind, "path": str(root), "parts": [part]})
    with pytest.raises(DataError) as complaint:
        list(read_records(source))
    assert f"has no {part}" not in str(complaint.value)


def test_a_misnamed_part_of_pairs_or_labels_is_named(tmp_path: Path) -> None:
    """The error is that of scenarios."""
    with pytest.raises(DataError, match=r"has no nothing\.json\. There is nothing"):
        read_pairs("pandalm", tmp_path, ("nothing.json",))
    with pytest.raises(DataError, match=r"has no test \(test\.json\)"):
        read_labels("diasafety", tmp_path, ("test",))
