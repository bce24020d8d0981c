"""Data gate: a Great Expectations suite on a table of scenarios, with Data Docs.

It checks faults that a table of valid scenarios can still have. If an expectation fails, the run stops. If its severity
is "warning", it is only logged and shown.

    scenarios     one row per scenario    a start declared both train and heldout; copies (warning)
    heldout       one row per scenario    near duplicates of training texts with the same world
    sources       one row per source      scenarios without an expected outcome (warning)
    categories    one row per category    shares and missing categories against the last version (warning)

Starts of episodes are compared: the user's text and the world. If two scenarios have similar texts but different
worlds, e.g. another seed of a generated world, they are different tasks.

The near-duplicate check compares all held-out scenarios with all training scenarios of the same world, in blocks.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import StrictUndefined, Template
from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json

from grpo.errors import DataError
from grpo.scenario import Expected, episode_start
from grpo.scenarios.similar_texts import SimilarPairs, TextSet
from grpo.scenarios.split import MIN_CATEGORY_SIZE, assign_split
from grpo.scenarios.table import open_scenarios
from grpo.storage.files import write_atomically

if TYPE_CHECKING:
    import pandas as pd
    from great_expectations.expectations.expectation import Expectation

NEAR_DUPLICATE = 0.9
"""Jaccard similarity at and above which two texts are near duplicates."""
MAX_LEAKED_FRACTION = 0.1
"""Largest fraction of held-out scenarios that may have a near duplicate in training."""
MAX_COPIED_FRACTION = 0.05
"""Fraction of scenarios with a copy above which there is a warning."""
MAX_MISSING_FRACTION = 0.05
"""Fraction of a source's scenarios without an expected outcome above which there is a warning. 1 is allowed."""
MAX_SHARE_CHANGE = 0.2
"""Change of a category's share since the last version above which there is a warning."""

_INDEX = "index.html"
_PAGE = Path(__file__).with_name("data_docs.html.j2")
_NAMED = 3  # rows that an error names
_BOUNDS = ("value", "min_value", "max_value", "value_set", "mostly")
_COLUMNS = ["id", "user_responses", "goal", "split", "text_digest", "expected", "metadata"]
_CONTENT = ["text_digest", "context", "tools", "world", "expected", "metadata"]
_CATEGORY = "category"
_SENTENCES = {
    "declared_splits": "{rows} scenarios start as others of the other declared split do, with the same text and world "
    "(leakage): {ids}. Declare both in one split, or tell them apart by `world` or `metadata.identity`",
    "copies": "{rows} scenarios are copies of others in all but their ids (duplicates): {ids}. Remove them, because a "
    "copy counts as often as it stands there",
    "training_similarity": "{rows} held-out texts are near duplicates of training texts with the same world (leakage): "
    "{ids}, with similarities {values}. Declare scenarios that belong together in one split, remove them, or tell them "
    "apart by `world` or `metadata.identity`",
    "missing_expected": "some scenarios expect nothing while others of their source do: {missing}. Success is not "
    "judged in these, so give them `expected` (calls, state or facts), or leave them out",
    "share_change": "the share of a category has changed since the last version (balance): {ids}, by {values}",
    "scenarios": f"categories with {MIN_CATEGORY_SIZE} scenarios in the last version have none now: {{ids}}",
}
"""What a failed expectation means, by its column: number of rows, ids of the first ones, and the remedy."""

logger = logging.getLogger(__name__)


class ExpectationResult(BaseModel):
    """One expectation and the values that it observed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    observed: str


class SuiteResult(BaseModel):
    """Results of the suite, and the Data Docs that show them."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    checks: tuple[ExpectationResult, ...]
    warnings: tuple[str, ...] = ()
    """Failed expectations of severity "warning"."""
    docs_index: str
    """Page of the Data Docs, relative to their folder."""


def validate(
    scenarios_path: Path,
    docs_folder: Path,
    *,
    validation_fraction: float | None = None,
    previous_path: Path | None = None,
) -> SuiteResult:
    """Run the suite on a table of scenarios and write its Data Docs, one page that loads nothing from other hosts.

    Without a `validation_fraction` only declared splits are compared. `previous_path` is the table of the last version.
    If it is missing or cannot be read, categories are not compared. If expectations fail, the docs are written first.
    Then `DataError` is raised, which names each failed expectation with the ids of the first rows.
    """
    frames = _frames(scenarios_path, validation_fraction, previous_path)
    suites = _run(_suites(), frames)
    write_atomically(docs_folder / _INDEX, _render(suites))
    results = [result for suite in suites.values() for result in suite]
    failed = [result for result in results if not result.success]
    errors = [_describe(result, frames) for result in failed if not _is_warning(result)]
    if errors:
        raise DataError(f"{scenarios_path} does not meet {len(errors)} expectation(s):\n  " + "\n  ".join(errors))
    warnings = tuple(_describe(result, frames) for result in failed)
    for warning in warnings:
        logger.warning("%s: %s", scenarios_path, warning)
    checks = tuple(ExpectationResult(name=_name(result), observed=_observed(result)) for result in results)
    return SuiteResult(checks=checks, warnings=warnings, docs_index=_INDEX)


def _suites() -> Mapping[str, list[Expectation]]:
    """The expectations on each frame, with their meaning as notes."""
    from great_expectations.expectations import ExpectColumnValuesToBeBetween as Between

    shares = "categories keep their shares of the last version (balance)"
    present = f"categories with {MIN_CATEGORY_SIZE} scenarios in the last version still have some"
    declared = "nothing that an episode starts from is declared both train and heldout (leakage)"
    copies = "scenarios differ in more than their ids (duplicates)"
    near = "held-out texts are not near duplicates of training texts with the same world (leakage)"
    expected = "a source has an expected outcome for all of its scenarios, or for none"
    few_copies, few_leaked, warn = 1 - MAX_COPIED_FRACTION, 1 - MAX_LEAKED_FRACTION, {"severity": "warning"}
    change = {"min_value": -MAX_SHARE_CHANGE, "max_value": MAX_SHARE_CHANGE}
    return {
        "scenarios": [
            Between(column="declared_splits", max_value=1, notes=declared),
            Between(column="copies", max_value=0, mostly=few_copies, notes=copies, **warn),
        ],
        "heldout": [
            Between(
                column="training_similarity", max_value=NEAR_DUPLICATE, strict_max=True, mostly=few_leaked, notes=near
            )
        ],
        "sources": [Between(column="missing_expected", max_value=MAX_MISSING_FRACTION, notes=expected, **warn)],
        "categories": [
            Between(column="share_change", notes=shares, **change, **warn),
            Between(column="scenarios", min_value=1, notes=present, **warn),
        ],
    }


def _frames(
    scenarios_path: Path, validation_fraction: float | None, previous_path: Path | None
) -> dict[str, pd.DataFrame]:
    table = open_scenarios(scenarios_path).read(columns=[*_COLUMNS, _CATEGORY])
    import pandas as pd  # takes half a second, which a dry run does not need

    frame = table.to_pandas()
    frame["split"] = pd.Series(table.column("split").to_pylist(), dtype=object)  # None, not NaN, if undeclared
    declared = frame.dropna(subset=["split"]).groupby("text_digest")["split"].nunique()
    frame["declared_splits"] = frame["text_digest"].map(declared).fillna(0)
    frame["copies"] = _copies(scenarios_path)
    frame["setting"] = _settings(scenarios_path)
    frames = {
        "scenarios": frame[["id", "declared_splits", "copies"]],
        "heldout": _heldout_frame(frame, validation_fraction),
        "sources": _sources_frame(frame),
    }
    if previous_path is not None:
        try:
            before = Counter(open_scenarios(previous_path).read(columns=[_CATEGORY]).column(_CATEGORY).to_pylist())
        except DataError as error:  # e.g. an older schema version
            logger.warning("categories are not compared with the last version: %s", error)
        else:
            frames["categories"] = _categories_frame(Counter(frame[_CATEGORY]), before)
    return frames


def _copies(path: Path) -> list[int]:
    """Other scenarios with the same normalized text and the same further fields, for each scenario."""
    digests = [
        hash(row)  # worlds are large: a batch of rows is in memory
        for batch in open_scenarios(path).iter_batches(batch_size=512, columns=_CONTENT)
        for row in zip(*(batch.column(name).to_pylist() for name in _CONTENT), strict=True)
    ]
    counts = Counter(digests)
    return [counts[digest] - 1 for digest in digests]


def _settings(path: Path) -> list[str]:
    """Digest of each scenario's world, or of its identity. Texts are compared only if these digests are equal."""
    return [
        hashlib.sha256(
            episode_start("", from_json(world), from_json(metadata).get("identity", "")).encode()
        ).hexdigest()
        for batch in open_scenarios(path).iter_batches(batch_size=512, columns=["world", "metadata"])
        for world, metadata in zip(*(batch.column(name).to_pylist() for name in ("world", "metadata")), strict=True)
    ]


def _heldout_frame(frame: pd.DataFrame, validation_fraction: float | None) -> pd.DataFrame:
    """Held-out scenarios with the similarity of the nearest training text in the same world, or 0 if none is near."""
    import pandas as pd

    ordered = frame.sort_values(["text_digest", "id"])
    declared = {digest: split for digest, split in zip(frame["text_digest"], frame["split"], strict=True) if split}
    splits = [
        declared.get(digest) or (assign_split(digest, share=validation_fraction) if validation_fraction else None)
        for digest in ordered["text_digest"]
    ]
    train, heldout = (ordered[[split == name for split in splits]] for name in ("train", "heldout"))
    similarities = np.zeros(len(heldout))
    for setting in {*train["setting"]} & {*heldout["setting"]}:
        places = np.flatnonzero(heldout["setting"] == setting)
        known, new = TextSet.of(_texts(train[train["setting"] == setting])), TextSet.of(_texts(heldout.iloc[places]))
        pairs = SimilarPairs.find(known, new, NEAR_DUPLICATE)
        np.maximum.at(similarities, places[pairs.right], pairs.similarity)
    return pd.DataFrame({"id": list(heldout["id"]), "training_similarity": similarities})


def _texts(frame: pd.DataFrame) -> list[str]:
    return ["\n".join((*turns, goal)) for turns, goal in zip(frame["user_responses"], frame["goal"], strict=True)]


def _sources_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Sources with the fraction of scenarios that expect nothing, and the first of these scenarios.

    The fraction is 0 if no scenario of the source expects anything. A source without a name is `(unnamed)`.
    """
    import pandas as pd

    sources = pd.Series([from_json(metadata)["source"] or "(unnamed)" for metadata in frame["metadata"]])
    silent = pd.Series([not Expected.model_validate_json(text).states_success for text in frame["expected"]])
    shares = silent.groupby(sources).mean()
    ids = frame["id"].reset_index(drop=True)[silent]
    first = [
        f"{silent[sources == name].sum()} of {(sources == name).sum()} of source {name} ("
        f"{_listed(ids[sources[silent] == name])})"
        for name in shares.index
    ]
    return pd.DataFrame(
        {"id": shares.index, "missing_expected": shares.where(shares < 1, 0.0).to_numpy(), "missing": first}
    )


def _listed(ids: Iterable[str]) -> str:
    """The first ids, and the number of the others."""
    names = list(ids)
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _categories_frame(now: Counter[str], before: Counter[str]) -> pd.DataFrame:
    """Categories with their scenarios, and the change of their share since the last version."""
    import pandas as pd

    names = sorted(name for name in now | before if now[name] or before[name] >= MIN_CATEGORY_SIZE)
    changes = [now[name] / now.total() - before[name] / max(1, before.total()) for name in names]
    return pd.DataFrame({"id": names, "scenarios": [now[name] for name in names], "share_change": changes})


def _run(suites: Mapping[str, list[Expectation]], frames: Mapping[str, pd.DataFrame]) -> dict[str, list[Any]]:
    """Validate each frame, and return the results of its expectations."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    import great_expectations as gx

    logging.getLogger("great_expectations.data_context.types.base").setLevel(logging.WARNING)  # its temporary folders
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    source = context.data_sources.add_pandas("scenarios")
    results = {}
    for name, frame in frames.items():
        suite = context.suites.add(gx.ExpectationSuite(name=name, expectations=suites[name]))
        batch = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe(name)
        definition = context.validation_definitions.add(gx.ValidationDefinition(name=name, data=batch, suite=suite))
        outcome = definition.run(
            batch_parameters={"dataframe": frame},
            result_format={
                "result_format": "SUMMARY",
                "partial_unexpected_count": _NAMED,
                "unexpected_index_column_names": ["id"],
            },
        )
        results[name] = list(outcome.results)
    return results


def _render(suites: Mapping[str, list[Any]]) -> str:
    """The page of the Data Docs, instead of Great Expectations' own pages, which load files from seven hosts."""
    template = Template(_PAGE.read_text(encoding="utf-8"), autoescape=True, undefined=StrictUndefined)
    rows = {
        name: [
            {
                "status": "passed" if result.success else "warning" if _is_warning(result) else "failed",
                "meaning": result.expectation_config.notes,
                "name": _name(result),
                "bounds": ", ".join(
                    f"{key}: {value}" for key, value in result.expectation_config.kwargs.items() if key in _BOUNDS
                ),
                "outcome": _outcome(result),
            }
            for result in results
        ]
        for name, results in suites.items()
    }
    return template.render(suites=rows)


def _is_warning(result: Any) -> bool:
    return bool(result.expectation_config.severity == "warning")


def _name(result: Any) -> str:
    """Type and column of an expectation: `expect_column_values_to_be_unique(id)`."""
    return f"{result.expectation_config.type}({result.expectation_config.kwargs['column']})"


def _observed(result: Any) -> str:
    return f"{result.result['unexpected_count']} of {result.result['element_count']} unexpected"


def _describe(result: Any, frames: Mapping[str, pd.DataFrame]) -> str:
    """A failed expectation in plain words: how many rows, the first of them by id, and the remedy."""
    column, observed = result.expectation_config.kwargs["column"], result.result
    if "unexpected_count" not in observed:
        return f"{result.expectation_config.notes}: {_outcome(result)}"
    rows = [str(row["id"]) for row in observed.get("partial_unexpected_index_list", ())][:_NAMED]
    more = observed["unexpected_count"] - len(rows)
    sources = frames["sources"]
    return _SENTENCES[column].format(
        rows=f"{observed['unexpected_count']} of {observed['element_count']}",
        ids=", ".join(rows) + (f" and {more} more" if more else ""),
        values=", ".join(f"{value:.3g}" for value in observed["partial_unexpected_list"][:_NAMED]),
        missing="; ".join(sources["missing"][sources["missing_expected"] > MAX_MISSING_FRACTION]),
    )


def _outcome(result: Any) -> str:
    """Number of unexpected rows, with the ids and values of the first ones."""
    observed = result.result
    if "unexpected_count" not in observed:
        return f"could not be computed: {result.exception_info!s:.300}"
    count = f"{observed['unexpected_count']} of {observed['element_count']} rows"
    if not observed["unexpected_count"]:
        return count
    rows = [row["id"] for row in observed.get("partial_unexpected_index_list", ())]
    values = ", ".join(f"{value:.3g}" for value in observed["partial_unexpected_list"][:_NAMED])
    return f"{count}, first ids {', '.join(map(str, rows[:_NAMED]))}, values {values}"
