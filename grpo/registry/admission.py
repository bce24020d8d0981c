"""Admission of a version that is not believed: it is shown, and signed with the key of this home.

A version needs it if another home, a release that did not sign, or MLflow's own client registered it, or if a tag was
changed on purpose. A version of a run keeps its provenance. Any other version that transformers can load is admitted
without provenance. Its files become a checkpoint of this home, which is served with an agent that adds
nothing. Both get the verdict `admitted`, because no gate of this home has judged them. Only `grpo promote --force`
promotes such a version.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.version_tags import SIGNED
from grpo.errors import AddressError, ArtifactError, RegistryError
from grpo.policy.weights.promotion_records import Actor
from grpo.policy.weights.registered import (
    MLMODEL_DIGEST,
    MODEL_DIGEST,
    ModelVersion,
    address_parts,
    claimed_checkpoint,
    fault_of,
    listed_version,
    signed_tags,
)
from grpo.policy.weights.sources import artifact_path
from grpo.registry.logged_models import MLMODEL, fetched, model_digest, parse_provenance, read_bounded
from grpo.registry.provenance import Provenance
from grpo.registry.recorded_config import check_import_folders, import_folders
from grpo.registry.retention import REGISTERED, Retention
from grpo.storage.fetched import user_temp_folder
from grpo.storage.home import home
from grpo.storage.signing import canonical

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion as MlflowVersion

    from grpo.registry.store import Registry

ADMITTED = "admitted"
"""Verdict of an admitted version, and its tag with the reason, the author and the time."""
_OBJECT = "object"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A version, and what its admission would sign."""

    address: str
    fault: str
    """Reason why it is not believed now."""
    tags: dict[str, str]
    """Tags that would be signed."""
    provenance: Provenance | None
    """None for a version that no run of this pipeline registered."""
    weights: str
    """Place of its weights."""
    unstored: Path | None = None
    """Checkpoint that the admission puts into the store of this home, if the version has no provenance."""

    @property
    def facts(self) -> dict[str, str]:
        """Texts for the person who decides, by name."""
        facts = {"now": f"it {self.fault}", "weights": self.weights, "registered files": self.tags[MODEL_DIGEST]}
        if self.provenance is None:
            return facts | {"provenance": "none: it is served with an agent that adds nothing"}
        agent = self.provenance.agent
        modules = {} if agent is None else {**agent.modules, **agent.environment_modules}
        return facts | {
            "policy": self.tags["policy"],
            "imports from": ", ".join(dict.fromkeys(import_folders(self.provenance.config))) or "no folder",
            "objects": ", ".join(dict.fromkeys(_objects(self.provenance.config))) or "none",
            "modules": "; ".join(f"{name} {digest[:16]}" for name, digest in modules.items()) or "none",
            "decision": self.provenance.decision,
            "base model": self.provenance.model,
            "code": f"{self.provenance.code}, commit {self.provenance.commit or 'unknown'}",
        }


@contextmanager
def examined(models: Registry, address: str) -> Iterator[Admission]:
    """Yield the version at `models:/NAME/3` as it would be admitted. Its files are verified, and nothing is imported.

    Raises `AddressError` if the version is missing, `RegistryError` if it is signed already, `ArtifactError` if its
    files are damaged, `ConfigError` if it imports code from a folder of artifacts, and `PolicyError` if the files are
    not a model.
    """
    listed = _listed(models, address)
    if (fault := fault_of(listed)) is None:
        raise RegistryError(f"{address} is signed with the key of this home already")
    with ExitStack() as stack:
        folder = stack.enter_context(fetched(models.tracking_uri, str(listed.source)))
        digest = model_digest(folder)
        if digest != listed.tags.get(MODEL_DIGEST, digest):
            raise ArtifactError(
                f"the files of {address} in {folder} do not have the digest of its tag {MODEL_DIGEST}, because they "
                "were changed after the registration. Restore them from a backup, or register the model again"
            )
        content = read_bounded(folder / MLMODEL)
        provenance = parse_provenance(content, moved=True)
        tags = {MODEL_DIGEST: digest}
        if provenance is None:
            place = unstored = stack.enter_context(_converted(folder, address))
            weights = f"the registered files, {folder / 'model'}"
        else:
            check_import_folders(address, provenance)
            tags |= {tag: listed.tags[tag] for tag in SIGNED if tag in listed.tags}
            tags |= {MLMODEL_DIGEST: hashlib.sha256(content).hexdigest()}
            checkpoint = _claimed(listed, address)
            place, unstored = artifact_path(checkpoint), None
            tags |= _tags_of(checkpoint)
            weights = f"{checkpoint.uri}, sha256 {checkpoint.sha256}"
        from grpo.learner.checkpoints import read_state

        policy = read_state(place).policy_hash
        if provenance is not None and provenance.policies[-1] != policy:
            raise ArtifactError(
                f"{address}: its provenance names policy {provenance.policies[-1]}, but its checkpoint has policy "
                f"{policy}. Register the model again"
            )
        yield Admission(
            address=address,
            fault=fault,
            tags=tags | {"policy": policy, "verdict": ADMITTED},
            provenance=provenance,
            weights=weights,
            unstored=unstored,
        )


def admit(models: Registry, admission: Admission, *, reason: str, by: Actor) -> ModelVersion:
    """Sign a version as it was examined. Its tags are written before the signature, because only the signature counts.

    Call it inside of `examined`. If the version has no provenance, its checkpoint is stored here, and not before.
    """
    listed = _listed(models, admission.address)
    name, number = str(listed.name), str(listed.version)
    author = {"by": by.model_dump(mode="json"), "reason": reason, "at": datetime.now(UTC).isoformat(timespec="seconds")}
    believed = {**admission.tags, ADMITTED: canonical(author)}
    if admission.unstored is not None:
        with ArtifactStore(str(home() / "artifacts")).new_folder("checkpoint") as new:
            shutil.copytree(admission.unstored, new.path, dirs_exist_ok=True)
        believed |= _tags_of(new.artifact)
    tags = signed_tags(
        name,
        run_id=str(listed.run_id or ""),
        tags=believed,
    )
    checkpoint = claimed_checkpoint(tags["checkpoint_uri"], tags["checkpoint_sha256"])
    Retention(ArtifactStore(checkpoint.uri.rsplit("/", 2)[0])).keep(checkpoint, REGISTERED)
    for tag in SIGNED:
        if tag in listed.tags and tag not in tags:
            models.client.delete_model_version_tag(name, number, tag)
    for tag, value in tags.items():
        models.client.set_model_version_tag(name, number, tag, value)
    return models.resolve(admission.address)


def _listed(models: Registry, address: str) -> MlflowVersion:
    parts = address_parts(address)
    if parts["version"] is None:
        raise AddressError(f"{address}: an alias can be moved. Name the version by its number, as `grpo models` does")
    listed = listed_version(models.client, parts["name"], int(parts["version"]))
    if listed is None:
        raise AddressError(
            f"no model at {address} in the registry {models.tracking_uri}. `grpo models` lists those that are there"
        )
    return listed


def _claimed(listed: MlflowVersion, address: str) -> Artifact:
    """Checkpoint that the tags of a version name, after its files were compared with its digest."""
    uri, digest = listed.tags.get("checkpoint_uri"), listed.tags.get("checkpoint_sha256")
    if uri is None or digest is None:
        raise AddressError(f"{address} has a provenance and no tags checkpoint_uri, checkpoint_sha256. Restore them")
    checkpoint = claimed_checkpoint(uri, digest)
    artifact_path(checkpoint)
    return checkpoint


def _tags_of(checkpoint: Artifact) -> dict[str, str]:
    return {"checkpoint_uri": checkpoint.uri, "checkpoint_sha256": checkpoint.sha256}


@contextmanager
def _converted(folder: Path, address: str) -> Iterator[Path]:
    """Yield a checkpoint with the weights and the tokenizer of a logged transformers model, without storing it."""
    from grpo.learner.checkpoints import save_base
    from grpo.policy.transformers.model import load

    parts = (folder / "model", folder / "components" / "tokenizer")
    if not all(part.is_dir() for part in parts):
        raise ArtifactError(
            f"{address} has no folders model and components/tokenizer, as mlflow.transformers.log_model writes them. "
            "Register the model with this function"
        )
    with tempfile.TemporaryDirectory(dir=user_temp_folder()) as scratch:
        whole, checkpoint = Path(scratch) / "model", Path(scratch) / "checkpoint"
        for part in parts:
            shutil.copytree(part, whole, dirs_exist_ok=True)
        checkpoint.mkdir()
        save_base(load(whole), checkpoint)
        yield checkpoint


def _objects(settings: Any) -> Iterator[str]:
    """Objects of the user's code that a config names, however deep."""
    if isinstance(settings, dict):
        if isinstance(reference := settings.get(_OBJECT), str):
            yield reference
        settings = list(settings.values())
    if isinstance(settings, list):
        for part in settings:
            yield from _objects(part)


def admitted_by(version: ModelVersion) -> str | None:
    """Time, author and reason of an admission. None if the version's own run has signed it."""
    if (text := version.tags.get(ADMITTED)) is None:
        return None
    record = json.loads(text)
    return f"{record['at']} by {record['by']['user']}@{record['by']['host']}: {record['reason']}"
