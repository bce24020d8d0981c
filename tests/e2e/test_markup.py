"""Texts of strangers on every page that this project makes, opened in a browser: they are shown, and are not markup."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pydantic import BaseModel, ValidationError

from grpo.errors import DataError
from grpo.evaluation.html_report import render_page
from grpo.messages import Message, ToolCall
from grpo.scenario import Metadata, Scenario
from grpo.scenarios.expectations import validate
from grpo.scenarios.table import write_scenarios
from grpo.trajectories import Turn
from grpo.tuning.document import render_study
from grpo_tasks.page_artifacts import show_table, show_text
from tests.doubles import make_trajectory
from tests.e2e.browser import STRANGER, Page, browser
from tests.grpo.evaluation import test_html_report
from tests.grpo.tuning import test_document

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore")]

HTML = f"<img src=//{STRANGER}/a onerror='hit=1'><script>hit=2</script></title></style></svg>"
MARKDOWN = f"![x](http://{STRANGER}/b) [x](javascript:hit=3) www.{STRANGER} `x` $x$"
HOSTILE = f'{HTML}"&{MARKDOWN}|{{{{7*7}}}}'
"""Tags, attributes, pictures, links and templates."""


Document = TypeVar("Document", bound=BaseModel)


def hostile(document: Document) -> Document:
    """The document with the hostile text in each field, key and item that takes it."""
    fields = document.model_dump(mode="json")

    def fits() -> bool:
        try:
            type(document).model_validate(fields)
        except ValidationError:
            return False
        return True

    def poison(place: Any) -> int:
        count = 0
        for key, value in list(place.items() if isinstance(place, dict) else enumerate(place)):
            if isinstance(value, (dict, list)):
                count += poison(value)
            if isinstance(value, str):
                place[key] = HOSTILE
                count += fits()
                place[key] = HOSTILE if fits() else value
            if isinstance(place, dict) and key not in type(document).model_fields:
                place[HOSTILE] = place[key]
                if fits():
                    count += 1
                else:
                    del place[HOSTILE]
        return count

    assert poison(fields) > 10
    return type(document).model_validate(fields)


def strangers(tab: Page, own: str) -> set[str]:
    """Hosts that the page asked, apart from its own."""
    return {address for address in tab.asked if not address.startswith((own, "data:", "blob:", "about:"))}


def taken_as_markup(tab: Page) -> list[Any]:
    """What a page made of the hostile text: a script that ran, pictures, and links that leave the page."""
    outside = f"(a.protocol + a.hostname).match(/{STRANGER}|javascript/)"
    links = f"[...document.querySelectorAll('a')].filter(a => {outside}).length"
    pictures = f"[...document.querySelectorAll('img, image')].filter(i => i.outerHTML.includes('{STRANGER}')).length"
    return [tab.evaluate(expression) for expression in ("window.hit || 0", pictures, links)]


def test_prefects_page_shows_texts_of_strangers_as_they_are(server: str, tmp_path: Path):
    """A heading, a reason, a description, and a cell and a column of a table. Prefect reads Markdown in all of them."""
    import httpx

    show_text(HOSTILE, HOSTILE, code=HOSTILE, key="hostile-text", description=HOSTILE)
    show_table([{"cell": HOSTILE, HOSTILE: 1}], key="hostile-table", description="2 of 2")
    login = os.environ["PREFECT_API_AUTH_STRING"]
    rows = httpx.post(f"{server}/artifacts/filter", json={}, timeout=60, auth=tuple(login.split(":", 1))).json()
    artifacts = {row["key"]: row["id"] for row in rows}
    pages = server.removesuffix("/api")
    with browser(tmp_path / "profile") as tab:
        tab.open(f"{pages}/ui-settings")
        tab.wait(f"location.href.startsWith('{pages}') && document.readyState === 'complete'")
        tab.evaluate(f"localStorage.setItem('prefect-password', btoa('{login}'))")
        for key in ("hostile-text", "hostile-table"):
            tab.open(f"{pages}/artifacts/artifact/{artifacts[key]}")
            tab.wait("document.body && document.body.innerText.includes('7*7')")
            place = f"[...document.querySelectorAll('{'td' if key == 'hostile-table' else 'h1, p'}')]"
            tab.wait(f"{place}.some(part => part.innerText.includes('7*7'))")
            shown = tab.evaluate(f"{place}.map(part => part.innerText)")
            assert HOSTILE in shown, (key, shown)
            assert taken_as_markup(tab) == [0, 0, 0], key
        assert strangers(tab, pages) == set()


def test_no_other_module_writes_markdown_for_prefect():
    """Each text goes through the module that escapes it."""
    from tests.places import ROOT

    files = [path for folder in ("flows", "tasks", "grpo") for path in (ROOT / folder).rglob("*.py")]
    makers = ("create_markdown_artifact", "create_table_artifact", "create_link_artifact")
    assert [path.name for path in files if any(maker in path.read_text(encoding="utf-8") for maker in makers)] == [
        "page_artifacts.py"
    ]


def test_reports_and_notebooks_show_texts_of_strangers_as_they_are(tmp_path: Path):
    """The report of a run and of a study with the text in every field that takes it, Data Docs, and notebooks."""
    pairs = [test_html_report.pair(0)]
    report = hostile(test_html_report.document(conversations=pairs, iterations=[test_html_report.iteration(0)]))
    study = hostile(test_document.document(*test_document.TRIALS))
    twice = [
        Scenario(id=f"{name} {HOSTILE}", user_responses=(HOSTILE,), metadata=Metadata(category=HOSTILE), split=split)
        for name, split in (("a", "train"), ("b", "heldout"))
    ]
    write_scenarios(tmp_path / "scenarios.parquet", twice)
    with pytest.raises(DataError, match="leakage"):  # the page is written first
        validate(tmp_path / "scenarios.parquet", tmp_path / "docs", validation_fraction=0.25)
    call = ToolCall(name=HOSTILE, arguments={HOSTILE: HOSTILE})
    messages = (Message(role="user", content=HOSTILE), Message(role="assistant", content=HOSTILE, tool_calls=(call,)))
    turns = tuple(Turn(message=message, start=0, stop=0) for message in messages)
    pages = {
        "report": render_page(report),
        "study": render_study(study),
        "docs": (tmp_path / "docs" / "index.html").read_text(encoding="utf-8"),
        "notebook": study.study._repr_html_() + make_trajectory(scenario_id=HOSTILE, turns=turns)._repr_html_(),
    }
    with browser(tmp_path / "profile") as tab:
        for name, page in pages.items():
            assert "7*7" in page, f"{name} does not show the text"
            open_page = page.replace('http-equiv="Content-Security-Policy"', "")  # the escaping has to hold by itself
            (tmp_path / f"{name}.html").write_text(open_page, encoding="utf-8")
            tab.open((tmp_path / f"{name}.html").as_uri())
            tab.wait("document.readyState === 'complete'")
            assert taken_as_markup(tab) == [0, 0, 0], name
            assert "49|" not in tab.evaluate("document.body.textContent"), name
        assert strangers(tab, "file:") == set()
