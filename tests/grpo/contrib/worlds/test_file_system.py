"""File system of BFCL; results are worked out by hand."""

from __future__ import annotations

from tests.grpo.contrib.worlds.bfcl import run_calls

DISK = {"root": {"home": {"type": "directory", "contents": {
    "b.txt": {"type": "file", "content": "two\none"},
    ".hidden": {"type": "file", "content": ""},
    "sub": {"type": "directory", "contents": {"b.txt": {"type": "file", "content": "two\nten"}}}}}}}  # fmt: skip


def test_files_are_read_without_changing_them():
    """Line counts, order, search, sizes: worked out by hand on "two\\none", 7 bytes, and "two\\nten", 7 bytes."""
    results, disk = run_calls(
        "GorillaFileSystem", DISK,
        ("ls", {}), ("ls", {"a": True}), ("sort", {"file_name": "b.txt"}), ("wc", {"file_name": "b.txt", "mode": "c"}),
        ("grep", {"file_name": "b.txt", "pattern": "on"}), ("tail", {"file_name": "b.txt", "lines": 1}),
        ("find", {"path": ".", "name": "b."}), ("du", {"human_readable": True}), ("pwd", {}),
    )  # fmt: skip
    assert [next(iter(result.values())) for result in results] == [
        ["b.txt", "sub"],
        ["b.txt", ".hidden", "sub"],
        "one\ntwo",
        7,
        ["one"],
        "one",
        ["./b.txt", "./sub/b.txt"],
        "14.00 B",
        "/home",
    ]
    assert disk["root"] == DISK["root"]


def test_files_are_moved_copied_and_removed_within_the_open_folder():
    """A folder takes the file in, another name renames it, a taken name is refused."""
    results, disk = run_calls(
        "GorillaFileSystem", DISK,
        ("mv", {"source": "b.txt", "destination": "sub"}), ("mv", {"source": "b.txt", "destination": "a.txt"}),
        ("cp", {"source": "a.txt", "destination": "sub"}), ("rmdir", {"dir_name": "sub"}),
        ("rm", {"file_name": "a.txt"}), ("cd", {"folder": "sub/b"}), ("cd", {"folder": "sub"}),
        ("diff", {"file_name1": "a.txt", "file_name2": "b.txt"}), ("cd", {"folder": ".."}), ("cd", {"folder": ".."}),
    )  # fmt: skip
    assert [("error" in result) for result in results] == [True] + [False] * 2 + [True, False, True] + [False] * 3 + [
        True
    ]
    assert results[7] == {"diff_lines": "- one\n+ ten"}
    home = disk["root"]["home"]["contents"]
    assert (list(home), list(home["sub"]["contents"])) == ([".hidden", "sub"], ["b.txt", "a.txt"])
