"""`MLmodel` files, which may be anybody's."""

from __future__ import annotations

import pytest

from grpo.errors import ArtifactError
from grpo.registry.logged_models import parse_provenance
from grpo.registry.provenance import PROVENANCE

_LEVELS = "\n".join(f"  a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]" for k in range(1, 9))
BOMB = f"metadata:\n  a0: &a0 [x, x]\n{_LEVELS}\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (BOMB.encode(), "more than 20,000 values, aliases followed"),
        (b"a: &a [*a]\n", "an alias inside of the value"),
        (b"[" * 100, "more than 50 levels"),
        (b"\xff", "can't decode byte"),
    ],
    ids=["aliases", "recursion", "levels", "bytes"],
)
def test_a_file_that_expands_is_refused_before_it_does(content: bytes, reason: str):
    """Under 1 kB, and 100 MB of values: `grpo admit` reads such a file of a stranger's version."""
    assert len(content) < 1_000
    with pytest.raises(ArtifactError, match=f"an MLmodel is damaged: .*{reason}"):
        parse_provenance(content)


def test_a_provenance_of_another_form_is_refused():
    """In one line, and not as an error of this project's code."""
    with pytest.raises(ArtifactError, match="its provenance has"):
        parse_provenance(f"metadata: {{{PROVENANCE}: 7}}\n".encode())


@pytest.mark.parametrize("content", [b"", b"7", b"metadata:\n", b"metadata: {other: 1}\n", b"metadata: 7\n"])
def test_a_file_without_provenance_has_none(content: bytes):
    assert parse_provenance(content) is None
