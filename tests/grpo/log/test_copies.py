"""Files of a home that name a conversation are erased, and nothing else."""

from __future__ import annotations

from pathlib import Path

from grpo.log.copies import ErasedCopy, Mentions, erase_from_home
from grpo.log.folder import name_digest

NAMED = '{"id": "conversation-anna"}'
OTHER = '{"id": "conversation-ben"}'


def _put(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _files(home: Path) -> set[str]:
    return {str(path.relative_to(home)) for path in home.rglob("*")}


def test_a_report_that_names_the_conversation_goes_with_its_picture_and_data_docs(tmp_path: Path):
    """The picture names nobody, and belongs to the report. The report of another run stays, with its Data Docs."""
    for run, text in (("named", NAMED), ("other", OTHER)):
        files = {"report_dot_json": text, "report_dot_html": text, "report_dot_png": "picture"}
        _put(tmp_path / run, **files, data_docs__index_dot_html="rules", notes_dot_txt="mine")
    erased = list(erase_from_home(tmp_path, Mentions([name_digest("anna")]), erased=(), log=tmp_path / "served"))
    assert erased == [ErasedCopy(place="home/report.json")]
    assert _files(tmp_path / "named") == {"notes.txt"}
    assert _files(tmp_path / "other") == {
        *("report.json", "report.html", "report.png", "notes.txt"),
        *("data_docs", "data_docs/index.html"),
    }


def test_data_docs_whose_pages_are_gone_are_removed(tmp_path: Path):
    """Their pages named the conversation, and the report does not. What is left would be a page without its texts."""
    _put(tmp_path / "run", report_dot_json=OTHER, data_docs__index_dot_html=NAMED, data_docs__static__style_dot_css="a")
    erased = list(erase_from_home(tmp_path, Mentions([name_digest("anna")]), erased=(), log=tmp_path / "served"))
    assert erased == [ErasedCopy(place="home/index.html")]
    assert _files(tmp_path / "run") == {"report.json"}


def test_a_plan_that_names_an_erased_artifact_is_removed(tmp_path: Path):
    """By the first 20 digits of its digest. Stores and the log are searched by others."""
    digest = "0123456789abcdef0123456789abcdef"
    _put(tmp_path / "nightly", **{"pending-1_dot_json": digest[:20], "pending-2_dot_json": "another"})
    _put(tmp_path / "artifacts", rollout__a_dot_json=NAMED)
    _put(tmp_path / "served", segments__a_dot_jsonl=NAMED)
    erased = list(erase_from_home(tmp_path, Mentions([name_digest("anna")]), erased=[digest], log=tmp_path / "served"))
    assert erased == [ErasedCopy(place="home/pending")]
    assert _files(tmp_path / "nightly") == {"pending-2.json"}
    assert (tmp_path / "artifacts" / "rollout" / "a.json").exists()
    assert (tmp_path / "served" / "segments" / "a.jsonl").exists()
