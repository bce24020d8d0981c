"""The pages that runs leave, opened in a browser whose requests are watched."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo.evaluation.html_report import render_page
from grpo.scenario import Scenario
from grpo.scenarios.expectations import validate
from grpo.scenarios.table import write_scenarios
from grpo.tuning.document import write_study
from tests.e2e.browser import browser
from tests.grpo.evaluation import test_html_report
from tests.grpo.tuning import test_document

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each kind, by what a reader finds in it; the last one asks another host for a picture."""
    folder = tmp_path_factory.mktemp("pages")
    write_scenarios(folder / "scenarios.parquet", [Scenario(id="a", user_responses=("Where is my order?",))])
    docs = validate(folder / "scenarios.parquet", folder / "data_docs", validation_fraction=0.25)
    (folder / "report.html").write_text(render_page(test_html_report.document()), encoding="utf-8")
    study = write_study(test_document.document(test_document.trial(0), test_document.trial(1)), folder / "study")[0]
    (folder / "control.html").write_text("control <img src='https://stranger.invalid/picture.png'>", encoding="utf-8")
    return {
        "nothing that an episode starts from is declared both train and heldout": folder
        / "data_docs"
        / docs.docs_index,
        "Every gate passed": folder / "report.html",
        "trial": study,
        "control": folder / "control.html",
    }


def test_every_page_opens_without_a_request_to_another_host(pages: dict[str, Path], tmp_path: Path):
    """Data Docs, the report of a run and of a study; a page that does ask for something shows that it is noticed."""
    asked = {}
    with browser(tmp_path / "profile") as tab:
        for content, page in pages.items():
            tab.asked.clear()
            tab.open(page.as_uri())
            tab.wait(f"document.readyState === 'complete' && location.href === '{page.as_uri()}'")
            tab.wait(f"document.body.innerText.includes('{content}')")
            asked[page.name] = {url for url in tab.asked if not url.startswith(("file:", "data:"))}
    assert asked == {
        "index.html": set(),
        "report.html": set(),
        "study.html": set(),
        "control.html": {"https://stranger.invalid/picture.png"},
    }
