"""YAML that a stranger wrote: what it may hold, and what is refused before it fills memory or time."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo.config.yaml_text import MOST_BYTES, parse_yaml, read_yaml
from grpo.errors import ConfigError


def test_aliases_and_merges_of_a_usual_size_are_followed():
    """An alias is the value that it stands for, a merge the keys of it."""
    text = "a: &a {x: 1, y: 2}\nb: *a\nc: {<<: *a, y: 3}"
    assert parse_yaml(text, place="t") == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 2}, "c": {"x": 1, "y": 3}}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40)), "20,000 values"),
        ("b0: &b0 {k: 1}\n" + "".join(f"b{i}: &b{i} {{<<: [*b{i - 1}, *b{i - 1}]}}\n" for i in range(1, 40)), "20,000"),
        ("[" + "1," * 20_001 + "]", "20,000 values"),
        ("&a [*a]", "an alias inside of what it stands for"),
        ("&a {x: {y: *a}}", "an alias inside of what it stands for"),
        ("[" * 51 + "]" * 51, "more than 50 levels"),
        ("a: 1\nb: 2\na: 3", "line 3, column 1: .* key 'a' stands twice"),
        ("2026-13-01", "month must be in"),
        ("9" * 5000, "cannot be read as YAML"),
        ("!!python/name:os.system", "could not determine a constructor"),
    ],
    ids=["aliases", "merges", "values", "circle", "deep circle", "levels", "twice", "date", "digits", "object"],
)
def test_what_is_not_plain_yaml_of_a_bounded_size_is_refused(text: str, reason: str):
    """2³⁹ values are counted, not made."""
    with pytest.raises(ConfigError, match=f"^t.*{reason}"):
        parse_yaml(text, place="t")


def test_levels_and_values_up_to_the_bounds_are_read():
    """50 levels; 19,998 numbers in a list under a key are 20,000 values with list, key and mapping counted: 20,001."""
    assert parse_yaml("[" * 50 + "]" * 50, place="t") is not None
    assert len(parse_yaml("a: [" + "1," * 19_997 + "]", place="t")["a"]) == 19_997
    with pytest.raises(ConfigError):
        parse_yaml("a: [" + "1," * 19_998 + "]", place="t")


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"a: caf\xe9", "byte 6 is not UTF-8"), (b"#" * (MOST_BYTES + 1), "1,048,577 bytes; at most 1,048,576")],
    ids=["encoding", "size"],
)
def test_a_file_that_is_no_text_or_too_large_is_named(tmp_path: Path, content: bytes, reason: str):
    """The place is the file."""
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"c\.yaml.* {reason}"):
        read_yaml(path)
