"""Paths of files that tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DESK_MODEL = ROOT / "data" / "models" / "desk_clerk"
DESK_SCENARIOS = ROOT / "data" / "scenarios" / "support_desk.jsonl"
PUBLISHED = ROOT.parent / "shared" / "data"
"""Data sets that others publish, beside the project; tests that need one are skipped where it is not."""
