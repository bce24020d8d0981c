"""User texts of a table of scenarios, each read only on access, because a test draws only a few of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grpo.retraining.filters import user_text
from grpo.scenarios.pii import mask_pii
from grpo.scenarios.table import open_scenarios

_COLUMNS = ["user_responses", "goal"]


class TableTexts(Sequence[str]):
    """Masked user texts of the scenarios of a table, in its order. `ids` has the scenarios' ids."""

    def __init__(self, path: Path, *, without: pa.Array | None = None) -> None:
        """Leave out the scenarios with ids in `without`."""
        self._path = path
        file = open_scenarios(path)
        ids = file.read(["id"]).column(0).combine_chunks()
        chosen = pc.invert(pc.is_in(ids, without)) if without is not None else pa.array(np.ones(len(ids), np.bool_))
        self.ids: pa.Array = ids.filter(chosen)
        self._rows = np.flatnonzero(chosen.to_numpy(zero_copy_only=False))
        metadata = file.metadata
        self._starts = np.cumsum([0, *(metadata.row_group(k).num_rows for k in range(metadata.num_row_groups))])
        self._group = -1
        self._table = pa.table({name: [] for name in _COLUMNS})

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...
    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        if isinstance(place, slice):
            return [self[k] for k in range(*place.indices(len(self)))]
        row = self._rows[place]
        group = int(np.searchsorted(self._starts, row, "right")) - 1
        if group != self._group:  # texts are drawn in order, so that a group is read once
            self._table, self._group = open_scenarios(self._path).read_row_group(group, _COLUMNS), group
        turns, goal = (self._table.column(name)[int(row - self._starts[group])].as_py() for name in _COLUMNS)
        return mask_pii(user_text(turns, goal))
