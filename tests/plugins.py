"""Packages of a user's own, as an installer or a folder on PYTHONPATH leaves them."""

from __future__ import annotations

from pathlib import Path

POLITE = """
from pathlib import Path

from grpo.rewards.reward import RewardFunction, RewardResult
from shop.words import POLITE

class PolitenessReward(RewardFunction):
    name = "politeness"
    probed = False

    async def compute_reward(self, turns, context):
        words = {*POLITE, *Path(__file__).with_name("words.txt").read_text().split()}
        said = " ".join(turn.content.lower() for turn in turns if turn.role == "assistant")
        return RewardResult(score=(sum(said.count(word) for word in words) % 7) / 7)
"""


def put_package(folder: Path) -> Path:
    """Put a distribution `shop` with the reward `politeness` below a folder; returns the package's own folder."""
    package = folder / "shop"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "rewards.py").write_text(POLITE)
    (package / "words.py").write_text("POLITE = ('please', 'order')\n")
    (package / "words.txt").write_text("refund look\n")
    information = folder / "shop-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[grpo.rewards]\npoliteness = shop.rewards:PolitenessReward\n")
    (information / "top_level.txt").write_text("shop\n")
    return package
