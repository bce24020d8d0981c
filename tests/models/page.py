"""docs/internals/models.md, written from models.json: a row for each family, reasons, and the families not built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from grpo.storage.fetched import user_temp_folder
from grpo.storage.locks import file_lock
from tests.benchmarks.page import Table
from tests.models.families import families, variants, wrappers
from tests.models.survey import TOLERANCE
from tests.places import INTERNALS

PAGE, STORE = "models.md", "models.json"
HEAD = ("family", "path", "rollout", "learner", "gradient", "checkpoint", "MLflow", "LoRA")
ASPECTS = HEAD[2:]
_TEXT = f"""Written by `make models`. Each row is a random tiny model of one family that transformers {{version}} builds
from a config: about four layers, one of each kind at least, windows of 16 tokens, weights so large that a window, a
cap, a sink or a scale that is ignored shows. Its reference is its own plain forward pass over one conversation,
without a cache, with eager attention. Four conversations of three turns, two with the same first prompt, are sampled
and learned from on the path that the policy chose for the model: **flat** (one row without padding, shared prefixes, a
cache of slots), **padded** (the model's own forward, masks and cache), **unpadded** (the same for conversations of one
length at a time) or **uncached** (whole conversations again for each token).

- rollout, learner: largest difference of log-probabilities in nats, conversations together / one at a time;
- gradient: relative error in the same two ways;
- checkpoint: largest difference after a step, a checkpoint of it and its reload;
- MLflow: largest difference after a registration and its reload;
- LoRA: weights that `all-linear` adapts, and the largest difference of the merged and of the reloaded model after a
  step that changed adapters alone.

A model for text and other inputs is **(whole)**: its published class is loaded, its text model is trained, and what is
saved has its architecture, its other towers as they were, and the files of its processor.

The context of a model is what its config states. Rotary embeddings that change beyond the length of pretraining
(LongRoPE, dynamic NTK) depend there on the longest conversation of a batch, so that length is the limit: 4k of 128k
for Phi-3. `grpo doctor` and the dry run print it with the setting that changes it: `short_factor` set to
`long_factor` under `rope_parameters` in config.json, or `rope_type` set to `yarn`.

Up to {TOLERANCE:.0e} counts as exact; more is **bold**."""


class Row(BaseModel):
    """Results of one family; an aspect without a result has its error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    family: str
    path: str | None = None
    refusal: str | None = None
    differences: dict[str, tuple[float, ...]] = {}
    """Values by aspect: together and one at a time, or one."""
    adapted: int = 0
    """Layers with an adapter."""
    errors: dict[str, str] = {}

    @property
    def exact(self) -> bool:
        """True where nothing differs and nothing failed."""
        values = [value for values in self.differences.values() for value in values]
        return not self.refusal and not self.errors and all(value <= TOLERANCE for value in values)

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        if self.refusal is not None:
            return self.family, "refused", *[""] * len(ASPECTS)
        return self.family, self.path or "", *map(self._cell, ASPECTS)

    def text(self) -> str:
        """The row and its reasons, as the terminal shows them."""
        reasons = {**self.errors, **({"refused": self.refusal} if self.refusal else {})}
        return " | ".join(self.cells()) + "\n" + "".join(f"    {name}: {reason}\n" for name, reason in reasons.items())

    def _cell(self, aspect: str) -> str:
        if aspect in self.errors:
            return "**error**"
        text = " / ".join(_number(value) for value in self.differences.get(aspect, ()))
        return f"{self.adapted}: {text}" if aspect == "LoRA" and text else text


def _number(value: float) -> str:
    text = "0" if value == 0 else f"{value:.0e}".replace("e-0", "e-")
    return text if value <= TOLERANCE else f"**{text}**"


class _Store(BaseModel):
    rows: dict[str, Row] = {}


def keep(row: Row, unbuildable: dict[str, str], *, version: str, measured: str, folder: Path = INTERNALS) -> None:
    """Put a row in the place of the one that its family had, and write the page anew."""
    store = folder / STORE
    with file_lock(user_temp_folder() / "locks" / f"{STORE}.lock"):
        rows = _Store.model_validate_json(store.read_bytes()).rows if store.is_file() else {}
        rows[row.family] = row
        store.write_text(_Store(rows=dict(sorted(rows.items()))).model_dump_json(indent=1) + "\n", encoding="utf-8")
        page = render(list(rows.values()), unbuildable, version=version, measured=measured)
        (folder / PAGE).write_text(page, encoding="utf-8")


def render(rows: Sequence[Row], unbuildable: dict[str, str], *, version: str, measured: str) -> str:
    """The page."""
    rows = sorted(rows, key=lambda row: row.family)
    paths = Counter(row.path or "" for row in rows if row.exact)
    refused = [row for row in rows if row.refusal is not None]
    wrong = [row for row in rows if row.refusal is None and not row.exact]
    exact = ", ".join(f"{count} are exact on the path {path}" for path, count in paths.most_common())
    whole = sum(row.family in wrappers() for row in rows)
    with_settings = sum("(" in row.family for row in rows) - whole
    summary = (
        f"{len(rows)} models, {whole} of them for text and other inputs (whole: trained on text, with the other towers "
        f"as they were), {with_settings} with settings that published models of a family have and its "
        f"default config has not: {exact}, {len(refused)} are refused, {len(wrong)} differ or fail. {len(unbuildable)} "
        "families are not built."
    )
    blocks = ["# Models", _TEXT.format(version=version), summary]
    blocks.append(Table(head=HEAD, rows=tuple(row.cells() for row in rows)).markdown())
    if refused:
        blocks += ["## Refused", _list((row.family, row.refusal or "") for row in refused)]
    if wrong:
        reasons = [(row.family, f"{aspect}: {error}") for row in wrong for aspect, error in row.errors.items()]
        blocks += ["## Differences and errors", _list(reasons or [(row.family, "see the table") for row in wrong])]
    if missing := sorted({*families(), *variants(), *wrappers()} - {row.family for row in rows}):
        blocks += ["## Not examined yet", ", ".join(missing)]
    blocks += ["## Not built", _list(sorted(unbuildable.items())), f"Measured on {measured}."]
    return "\n\n".join(blocks) + "\n"


def _list(items: object) -> str:
    return "\n".join(f"- {name}: {text}" for name, text in items)  # type: ignore[attr-defined]
