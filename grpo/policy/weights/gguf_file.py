"""GGUF files by path, and their conversions, kept in `models` of GRPO_HOME by the digest of the file."""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import re
from pathlib import Path

from grpo.artifacts import Artifact, ArtifactStore
from grpo.errors import ArtifactError, PolicyError
from grpo.storage.files import stamped_digest
from grpo.storage.home import home
from grpo.storage.locks import file_lock

logger = logging.getLogger(__name__)

_FORMAT = 1
"""Version of the conversion. If it changes, files are converted again."""
_PACKAGES = ("gguf", "transformers")
"""Packages that determine the number behind a quantized weight."""
_PART = re.compile(r"-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf$")


def find_gguf(path: Path) -> Path | None:
    """Return the GGUF file at a path: the path itself, or the only one in a folder without config.json; else None.

    Raises `PolicyError` if a folder has several, or if a file is a part of a split file.
    """
    try:
        if path.is_dir():
            has_config = any((path / name).exists() for name in ("config.json", "adapter_config.json"))
            files = [] if has_config else sorted(path.glob("*.gguf"))
        else:
            files = [path] if path.suffix == ".gguf" and path.is_file() else []
    except OSError:  # not a valid file name
        return None
    for file in files:
        if (match := _PART.search(file.name)) is not None and int(match["parts"]) > 1:
            raise PolicyError(
                f"{file} is one of {int(match['parts'])} parts. Merge them with llama-gguf-split --merge, and set "
                "policy.model to the merged file"
            )
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise PolicyError(f"{path} holds {len(files)} GGUF files. Set policy.model to one of {names}")
    return files[0] if files else None


def conversion_digest(file: Path) -> str:
    """Identity of a converted model: digest of the file's content and of the versions that convert it."""
    versions = " ".join(f"{package}=={importlib.metadata.version(package)}" for package in _PACKAGES)
    return hashlib.sha256(f"gguf {stamped_digest(file)} {versions} {_FORMAT}".encode()).hexdigest()


def converted_folder(file: Path) -> Path:
    """Folder of the converted model. It is converted on first use, and verified by its digest on later ones.

    Raises the errors of `grpo.policy.weights.gguf.convert_gguf`.
    """
    place = home() / "models"
    store, name = ArtifactStore(str(place)), f"gguf/{conversion_digest(file)}"
    with file_lock(place / f"{Path(name).name}.lock"):
        try:
            if (record := store.documents.read(name)) is not None:
                return store.path(Artifact.model_validate(record))
        except ArtifactError as error:
            logger.warning("%s, so %s is converted again", error, file)
        from grpo.policy.weights.gguf import convert_gguf

        with store.new_folder("model") as new:
            convert_gguf(file, new.path)
        store.documents.write(name, new.artifact.model_dump())
    return store.path(new.artifact)
