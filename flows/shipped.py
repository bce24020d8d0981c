"""Files that the project ships beside its code: a wheel without its repository has none of them."""

from __future__ import annotations

from pathlib import Path

from grpo.rewards.judge.rubrics import RUBRICS
from grpo.rewards.learned.safety import SHIPPED as SAFETY

ROOT = Path(__file__).resolve().parents[1]
QUICKSTART = ROOT / "data" / "configs" / "quickstart.yaml"
PARTS = {
    "configs": QUICKSTART,
    "scenarios": ROOT / "data" / "scenarios" / "support_desk.jsonl",
    "model": ROOT / "data" / "models" / "desk_clerk" / "config.json",
    "rubrics of the judge": RUBRICS / "customer_service.yaml",
    "network of the safety reward": SAFETY,
}
"""A file or folder of each part, by its name."""
