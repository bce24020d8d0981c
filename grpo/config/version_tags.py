"""Names of the tags of a registered version that a run writes and signs.

Commands trust these tags because of the signature. A config may add tags of its own, but not under these names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

SIGNATURE = "signature"
SIGNED = (
    *("run_key", "policy", "merged", "parent", "verdict", "scenarios", "tuned_on", "code"),
    *("conversations", "started_from"),
    *("checkpoint_uri", "checkpoint_sha256", "champion_uri", "champion_sha256"),
    *("model_sha256", "mlmodel_sha256", "evaluation_sha256", "heldout", "admitted"),
)
"""Tags that code of this package believes."""
_OF_RETRAINING = ("conversations", "started_from")
"""Tags that a retraining gives to its run in the config: digests."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


def refuse_signed(tags: Mapping[str, str]) -> Mapping[str, str]:
    """The tags of a config. Raises `ValueError` for a tag that a run writes itself."""
    for name, value in tags.items():
        if name in (*SIGNED, SIGNATURE) and not (name in _OF_RETRAINING and _DIGEST.fullmatch(value)):
            raise ValueError(f"rename the tag {name}, because a run writes and signs a tag of this name itself")
    return tags
