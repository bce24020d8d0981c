"""Differences between the provenance of two runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.grpo.registry.making import make_provenance


@pytest.mark.parametrize(
    ("then", "now", "named"),
    [
        ({"code": "c1"}, {"code": "c2"}, {"code": ("c1", "c2")}),
        ({"commit": "abc"}, {"commit": "abd+"}, {"commit": ("abc", "abd+")}),
        ({"commit": None}, {"commit": "abc"}, {"commit": ("none", "abc")}),
        ({"commit": "abc"}, {"commit": None}, {"commit": ("abc", "none")}),
        ({"packages": {"torch": "1"}}, {"packages": {}}, {"package torch": ("1", "none")}),
        ({"packages": {}}, {"packages": {"trl": "2"}}, {"package trl": ("none", "2")}),
        ({"external_digests": {"reward.py": "a"}}, {"external_digests": {"reward.py": "b"}}, {"reward.py": ("a", "b")}),
        ({"external_digests": {"reward.py": "a"}}, {}, {"reward.py": ("a", "none")}),
        ({}, {"external_digests": {"reward.py": "b"}}, {"reward.py": ("none", "b")}),
        ({"sources": "1"}, {"sources": "2"}, {"sources": ("1", "2")}),
        ({"model": "1"}, {"model": "2"}, {"base model": ("1", "2")}),
        ({"scenarios": "1"}, {"scenarios": "2"}, {"scenarios": ("1", "2")}),
        ({"machine": {"threads": "1"}}, {"machine": {}}, {"threads": ("1", "none")}),
        ({"machine": {}}, {"machine": {"threads": "2"}}, {"threads": ("none", "2")}),
        ({"seed": 1, "decision": "no", "checks": {}}, {"seed": 2}, {}),
    ],
)
def test_a_difference_has_both_values(then: dict[str, Any], now: dict[str, Any], named: dict[str, tuple[str, str]]):
    """And no others; a missing value is shown as none."""
    assert make_provenance(**then).differences(make_provenance(**now)) == named


def test_differences_are_in_a_fixed_order():
    """Code, commit, packages and user's files by name, data, base model, scenarios, machine by name."""
    then = make_provenance(
        packages={"b": "1", "a": "1"},
        external_digests={"y.py": "1", "x.py": "1"},
        machine={"threads": "1", "processor": "1"},
    )
    now = make_provenance(
        packages={}, machine={}, code="2", commit="2", sources="2", model="2", scenarios="2"
    )  # fmt: skip
    assert list(then.differences(now)) == [
        *("code", "commit", "package a", "package b", "x.py", "y.py"),
        *("sources", "base model", "scenarios", "processor", "threads"),
    ]


def test_a_file_that_lies_elsewhere_is_compared_by_content():
    """One moved unchanged, one moved and changed; a module of equal content under another name is a difference."""
    then = {"file /a/words.txt": "1", "file /a/rules.txt": "2", "x, module a": "3"}
    now = {"file /b/words.txt": "1", "file /b/rules.txt": "4", "x, module b": "3"}
    named = make_provenance(external_digests=then).differences(make_provenance(external_digests=now))
    assert named == {
        "file /a/rules.txt": ("2", "none"),
        "file /b/rules.txt": ("none", "4"),
        "x, module a": ("3", "none"),
        "x, module b": ("none", "3"),
    }


def test_a_file_that_has_the_digest_of_a_moved_one_and_is_in_place_is_compared_in_place():
    """/c was as /a is, and has another content now."""
    then = {"file /a": "1", "file /c": "1"}
    now = {"file /b": "1", "file /c": "2"}
    named = make_provenance(external_digests=then).differences(make_provenance(external_digests=now))
    assert named == {"file /c": ("1", "2")}
