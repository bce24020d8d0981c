"""A bounded part of `make fuzz`: every kind of source, some mutated records each."""

from __future__ import annotations

import pytest

from tests.fuzz.run import FEWEST, fuzz, targets


@pytest.mark.filterwarnings("ignore::Warning")  # whatever a library warns of in mutated files
@pytest.mark.parametrize("name", targets())
def test_no_mutation_crashes_hangs_or_miscounts(name: str) -> None:
    """20 records of each kind of source, fixed seed: refused or read, and every record accounted for."""
    tally = fuzz(name, records=20, seed=13)
    assert tally.sources >= FEWEST
    assert (tally.crashes, tally.hangs, tally.wrong) == ([], [], [])
