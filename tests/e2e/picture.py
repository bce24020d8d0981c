"""Draw docs/prefect.png: a run of the quickstart as Prefect's own page shows it. `python -m tests.e2e.picture`."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
from PIL import Image

from grpo_local import settings
from grpo_local.login import CLIENT
from tests.e2e.browser import browser
from tests.e2e.served import LOGIN, basic, prefect_service
from tests.places import ROOT

PICTURE = ROOT / "docs" / "prefect.png"
_ITERATIONS = 5
_MENU, _WIDTH = 256, 1600
"""Pixels: Prefect's menu at the left, and the whole picture."""
_RUN, _DETAIL = 1080, 526
"""Heights of the run's page and, under it, of two artifacts side by side."""
_OPEN_ARTIFACTS = "[...document.querySelectorAll('li')].find(tab => tab.innerText === 'Artifacts').click()"


def main() -> None:
    """Train on a server of its own, then take the picture."""
    with tempfile.TemporaryDirectory(prefix="grpo-picture-") as folder:
        home = Path(folder)
        environment = {**os.environ, **settings.offline_variables(), **settings.home_variables(home)}
        environment |= {CLIENT: LOGIN, "PYTHONPATH": str(ROOT)}
        environment.pop("PREFECT_API_URL", None)
        with prefect_service(home, environment).shared() as url:
            overrides = ("--set", f"training.iterations={_ITERATIONS}", "--set", f"store={home}/store")
            subprocess.run(
                [sys.executable, "-m", "grpo_cli", "train", "data/configs/quickstart.yaml", *overrides],
                env={**environment, "PREFECT_API_URL": url},
                cwd=ROOT,
                check=True,
            )
            draw(url, "quickstart", home / "profile").save(PICTURE, optimize=True)
    print(PICTURE)


def draw(url: str, name: str, profile: Path) -> Image.Image:
    """The page of the completed run of this name with its artifacts listed, and two of them opened under it.

    It waits until the page shows them, and asserts that the page has asked for nothing elsewhere.
    """
    pages = url.removesuffix("/api")
    where = {"flow_runs": {"name": {"any_": [name]}, "state": {"type": {"any_": ["COMPLETED"]}}}}
    (run,) = httpx.post(f"{url}/flow_runs/filter", json=where, timeout=60, auth=basic(LOGIN)).json()
    where = {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}}
    rows = httpx.post(f"{url}/artifacts/filter", json=where, timeout=60, auth=basic(LOGIN)).json()
    artifacts = {row["key"]: row["id"] for row in rows if row["type"] != "result"}
    half = _WIDTH // 2
    picture = Image.new("RGB", (_WIDTH, _RUN + _DETAIL))
    with browser(profile) as page:
        page.open(f"{pages}/ui-settings")  # of the same origin, where the page keeps the password
        page.wait(f"location.href.startsWith('{pages}') && document.readyState === 'complete'")
        page.evaluate(f"localStorage.setItem('prefect-password', btoa('{LOGIN}'))")
        page.size(width=_WIDTH, height=_RUN)
        page.open(f"{pages}/runs/flow-run/{run['id']}")
        page.wait("document.body && document.body.innerText.includes('Subflow Runs')")
        page.evaluate(_OPEN_ARTIFACTS)
        page.wait("document.body.innerText.includes('gates passed')")
        picture.paste(_image(page.settled(x=0, width=_WIDTH, height=_RUN)), (0, 0))
        for place, (key, ready) in enumerate((("gates", "must be"), ("curves", "Image URL"))):
            page.size(width=_MENU + half, height=_DETAIL)
            page.open(f"{pages}/artifacts/artifact/{artifacts[key]}")
            page.wait(f"document.body && document.body.innerText.includes('{ready}')")
            picture.paste(_image(page.settled(x=_MENU, width=half, height=_DETAIL)), (place * half, _RUN))
        strangers = {address for address in page.asked if not address.startswith((pages, "data:", "blob:"))}
        assert not strangers, f"the page asked for {strangers}"
    return picture.quantize(256, dither=Image.Dither.NONE)


def _image(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png)).convert("RGB")


if __name__ == "__main__":
    main()
