"""What a table of scenarios must show before anything is computed on it: a Great Expectations suite, as code.

Three frames are held against their expectations:

    columns     one row a column of the table    the schema
    scenarios   one row a scenario               ids, turns, enumerations, leakage between the splits
    ingestion   one row                          counts that add up, the quarantined share
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pandas as pd
import pyarrow.compute as pc
from jinja2 import StrictUndefined, Template
from pydantic import BaseModel, ConfigDict

from grpo.errors import DataError
from grpo.scenarios.ingest import IngestCounts
from grpo.scenarios.scenario import MAX_TURN_CHARS, MAX_TURNS, Difficulty, Domain, SplitName
from grpo.scenarios.table import SCHEMA, open_scenarios
from grpo.storage.files import write_atomically
from grpo.tables import open_parquet

if TYPE_CHECKING:
    from great_expectations.expectations.expectation import Expectation

_INDEX = "index.html"
_PAGE = Path(__file__).with_name("data_docs.html.j2")
_NAMED = 3  # rows that an error names
_BOUNDS = ("value", "min_value", "max_value", "value_set")
_COLUMNS = ["id", "domain", "user_responses", "goal", "split", "text_digest", "category", "difficulty"]


class ExpectationResult(BaseModel):
    """One expectation that held."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    observed: str


class SuiteResult(BaseModel):
    """The expectations that held, and the Data Docs that show them."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    checks: tuple[ExpectationResult, ...]
    docs_index: str
    """Page of the Data Docs, relative to their folder."""


def validate(
    scenarios_path: Path,
    quarantine_path: Path,
    counts: IngestCounts,
    docs_folder: Path,
    *,
    max_quarantined_fraction: float,
) -> SuiteResult:
    """Hold the tables against the suite and write its Data Docs, a page that asks nothing of any other host.

    Raises `DataError` that names each failed expectation with the ids of the first rows; the docs are built first.
    """
    frames = {
        "columns": _columns_frame(scenarios_path),
        "scenarios": _scenarios_frame(scenarios_path),
        "ingestion": _ingestion_frame(scenarios_path, quarantine_path, counts),
    }
    suites = _run(_suites(max_quarantined_fraction), frames)
    write_atomically(docs_folder / _INDEX, _render(suites))
    results = [result for suite in suites.values() for result in suite]
    failed = [_describe(result) for result in results if not result.success]
    if failed:
        raise DataError(f"{scenarios_path} does not meet {len(failed)} expectation(s):\n  " + "\n  ".join(failed))
    return SuiteResult(checks=tuple(_check(result) for result in results), docs_index=_INDEX)


def _suites(max_quarantined_fraction: float) -> Mapping[str, list[Expectation]]:
    """The expectations on each frame; their notes say what they mean."""
    from great_expectations import expectations as gxe

    columns = [f"{field.name}: {field.type}" for field in SCHEMA]
    return {
        "columns": [
            gxe.ExpectTableRowCountToEqual(value=len(columns), notes="the table has every column of a scenario"),
            gxe.ExpectColumnValuesToBeInSet(
                column="column", value_set=columns, notes="the columns have the names and types of a scenario's"
            ),
        ],
        "scenarios": [
            gxe.ExpectTableRowCountToBeBetween(min_value=1, notes="there are scenarios"),
            gxe.ExpectColumnValuesToNotBeNull(column="id", notes="every scenario has an id"),
            gxe.ExpectColumnValuesToBeUnique(column="id", notes="an id names one scenario"),
            gxe.ExpectColumnValueLengthsToBeBetween(
                column="id", min_value=1, max_value=200, notes="an id has 1 to 200 characters"
            ),
            gxe.ExpectColumnValuesToBeInSet(
                column="domain", value_set=list(get_args(Domain)), notes="the domain is one of the known ones"
            ),
            gxe.ExpectColumnValuesToBeInSet(
                column="difficulty",
                value_set=list(get_args(Difficulty)),
                notes="the difficulty is one of the known ones",
            ),
            gxe.ExpectColumnValuesToBeInSet(
                column="split", value_set=list(get_args(SplitName)), notes="a declared split is train or heldout"
            ),
            gxe.ExpectColumnValueLengthsToBeBetween(
                column="category", min_value=1, max_value=200, notes="a category has 1 to 200 characters"
            ),
            gxe.ExpectColumnValueLengthsToEqual(
                column="text_digest", value=16, notes="a text digest has 16 hex digits"
            ),
            gxe.ExpectColumnValuesToBeBetween(
                column="turns", min_value=0, max_value=MAX_TURNS, notes=f"a user has at most {MAX_TURNS} turns"
            ),
            gxe.ExpectColumnValuesToBeBetween(column="shortest_turn_chars", min_value=1, notes="no user turn is empty"),
            gxe.ExpectColumnValuesToBeBetween(
                column="longest_turn_chars",
                max_value=MAX_TURN_CHARS,
                notes=f"a user turn has at most {MAX_TURN_CHARS} characters",
            ),
            gxe.ExpectColumnValuesToBeBetween(
                column="user_chars", min_value=1, notes="every scenario has a user: a script or a goal"
            ),
            gxe.ExpectColumnValuesToBeBetween(
                column="declared_sides", max_value=1, notes="no text is declared both train and heldout (leakage)"
            ),
        ],
        "ingestion": [
            gxe.ExpectColumnMaxToBeBetween(
                column="quarantined_share",
                max_value=max_quarantined_fraction,
                notes="few enough records are quarantined",
            ),
            gxe.ExpectColumnPairValuesToBeEqual(
                column_A="records", column_B="counted", notes="records = scenarios + quarantined"
            ),
            gxe.ExpectColumnPairValuesToBeEqual(
                column_A="scenarios", column_B="scenario_rows", notes="every scenario is in its table"
            ),
            gxe.ExpectColumnPairValuesToBeEqual(
                column_A="quarantined", column_B="quarantine_rows", notes="every other record is in quarantine"
            ),
        ],
    }


def _columns_frame(path: Path) -> pd.DataFrame:
    schema = open_scenarios(path).schema_arrow
    return pd.DataFrame({"column": [f"{field.name}: {field.type}" for field in schema]})


def _scenarios_frame(path: Path) -> pd.DataFrame:
    """What is expected of each scenario, without its texts."""
    file = open_scenarios(path)
    missing = [name for name in _COLUMNS if name not in file.schema_arrow.names]
    if missing:
        raise DataError(f"{path} has no column {', '.join(missing)}; ingest the sources again")
    table = file.read(columns=_COLUMNS).combine_chunks()
    frame = table.drop_columns(["user_responses", "goal"]).to_pandas()
    turns = table.column("user_responses")
    chars = pd.Series(pc.utf8_length(pc.utf8_trim_whitespace(pc.list_flatten(turns))).to_pandas())
    by_scenario = chars.groupby(pc.list_parent_indices(turns).to_numpy())
    frame["turns"] = pc.list_value_length(turns).to_numpy()
    frame["shortest_turn_chars"] = by_scenario.min().reindex(frame.index)
    frame["longest_turn_chars"] = by_scenario.max().reindex(frame.index)
    goal_chars = pc.utf8_length(pc.utf8_trim_whitespace(table.column("goal"))).to_numpy()
    frame["user_chars"] = by_scenario.sum().reindex(frame.index, fill_value=0) + goal_chars
    splits = frame.dropna(subset=["split"]).groupby("text_digest")["split"].nunique()
    frame["declared_sides"] = frame["text_digest"].map(splits).fillna(0)
    return frame


def _ingestion_frame(scenarios_path: Path, quarantine_path: Path, counts: IngestCounts) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "records": [counts.records],
            "scenarios": [counts.scenarios],
            "quarantined": [counts.quarantined],
            "counted": [counts.scenarios + counts.quarantined],
            "scenario_rows": [open_parquet(scenarios_path).metadata.num_rows],
            "quarantine_rows": [open_parquet(quarantine_path).metadata.num_rows],
            "quarantined_share": [counts.quarantined / max(counts.records, 1)],
        }
    )


def _run(suites: Mapping[str, list[Expectation]], frames: Mapping[str, pd.DataFrame]) -> dict[str, list[Any]]:
    """Validate each frame; returns the results of the expectations on it."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    import great_expectations as gx

    logging.getLogger("great_expectations.data_context.types.base").setLevel(logging.WARNING)  # its temporary folders
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    source = context.data_sources.add_pandas("ingestion")
    results = {}
    for name, frame in frames.items():
        suite = context.suites.add(gx.ExpectationSuite(name=name, expectations=suites[name]))
        batch = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe(name)
        definition = context.validation_definitions.add(gx.ValidationDefinition(name=name, data=batch, suite=suite))
        names_rows = {"unexpected_index_column_names": ["id"]} if "id" in frame.columns else {}
        outcome = definition.run(
            batch_parameters={"dataframe": frame},
            result_format={"result_format": "SUMMARY", "partial_unexpected_count": _NAMED, **names_rows},
        )
        results[name] = list(outcome.results)
    return results


def _render(suites: Mapping[str, list[Any]]) -> str:
    """The page of the Data Docs. Great Expectations' own pages load scripts, styles and pictures from seven hosts."""
    template = Template(_PAGE.read_text(encoding="utf-8"), autoescape=True, undefined=StrictUndefined)
    rows = {
        name: [
            {
                "passed": result.success,
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


def _name(result: Any) -> str:
    """`expect_column_values_to_be_unique(id)`"""
    settings = result.expectation_config.kwargs
    columns = [settings[key] for key in ("column", "column_A", "column_B") if key in settings]
    name = str(result.expectation_config.type)
    return f"{name}({', '.join(columns)})" if columns else name


def _check(result: Any) -> ExpectationResult:
    found = result.result
    if "unexpected_count" in found:
        return ExpectationResult(
            name=_name(result), observed=f"{found['unexpected_count']} of {found['element_count']} unexpected"
        )
    return ExpectationResult(name=_name(result), observed=str(found["observed_value"]))


def _describe(result: Any) -> str:
    """A failed expectation: what it means, what was observed, the first rows."""
    return f"{result.expectation_config.notes}: {_name(result)} {_outcome(result)}"


def _outcome(result: Any) -> str:
    """What was observed, and the first rows that were not expected."""
    observed = result.result
    if "observed_value" in observed:
        return f"observed {observed['observed_value']}"
    if "unexpected_count" not in observed:
        return f"could not be computed: {result.exception_info!s:.300}"
    count = f"{observed['unexpected_count']} of {observed['element_count']} rows"
    if not observed["unexpected_count"]:
        return count
    rows = [row["id"] for row in observed.get("partial_unexpected_index_list", ()) if isinstance(row, dict)]
    where = f", first ids {', '.join(map(str, rows[:_NAMED]))}" if rows else ""
    values = ", ".join(map(str, observed["partial_unexpected_list"][:_NAMED]))
    return f"{count}{where}, values {values:.200}"
