"""What a model may write as JSON, and what of it is read."""

from __future__ import annotations

import json

import pytest

from grpo.strict_json import MAX_DEPTH, NotStrictJSON, as_json, clean_text, decode, decode_at, encode


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (r'"\ud83d"', "half of a surrogate pair"),
        (r'{"\udc00": 1}', "half of a surrogate pair"),
        ("[NaN]", "NaN is not a number"),
        ("-Infinity", "-Infinity is not a number"),
        ("1e999", "1e999 is too large"),
        ("9" * 10**6, "a number of 1000000 characters"),
        ("0." + "1" * 500, "a number of 502 characters"),
        ("[" * 10**4 + "]" * 10**4, "more than 64 levels"),
        ('{"a":' * 10**5, "more than 64 levels"),
        ('{"a": 1, "a": 2}', "the key 'a' is given twice"),
        ('"' + "x" * 10**6 + '"', "at most 1000000 are read"),
        ("{} {}", "text after the value"),
        ("", "not JSON"),
        ("{'a': 1}", "not JSON"),
    ],
)
def test_what_a_strict_reader_refuses_is_refused(text: str, reason: str):
    """With the reason, and without a recursion or a long computation."""
    with pytest.raises(NotStrictJSON, match=reason):
        decode(text)


@pytest.mark.parametrize(
    "text",
    ['{"a": [1, -2.5e3, "é\\n", true, null]}', r'"\ud83d\ude00"', "9" * 400, "[" * 64 + "]" * 64, r'"[[[\"{{{"'],
)
def test_a_value_that_is_read_can_be_written_again(text: str):
    """In UTF-8, to the same value as `json` reads."""
    value = decode(f" \n{text}\t")
    assert value == json.loads(text)
    assert decode(encode(value)) == value
    assert encode(value).encode()


def test_a_value_is_read_in_the_middle_of_a_text():
    """With the position after it; brackets beyond it do not count."""
    text = f"call {{}} {'[' * (MAX_DEPTH + 1)}"
    assert decode_at(text, 5) == ({}, 7)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud83d", {1, 2}, object(), {"a": [float("-inf")]}])
def test_what_json_lacks_is_not_written(value: object):
    """A tool's result, or a reward's metadata."""
    with pytest.raises(NotStrictJSON):
        encode(value)


def test_a_value_of_python_is_one_of_json():
    """With lists for tuples."""
    assert as_json({"a": (1, (2,))}) == {"a": [1, [2]]}


def test_halves_of_pairs_are_joined_or_replaced():
    """As a server may send an emoji in two escapes."""
    assert clean_text("a\ud83d\ude00b\ud83d") == "a😀b\ufffd"
    assert clean_text("plain") == "plain"
