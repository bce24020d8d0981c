"""Export of a registered model as a plain Hugging Face folder for another server."""

from __future__ import annotations

import shutil
from pathlib import Path

from transformers import AutoConfig

from grpo.errors import ConfigError
from grpo.policy.transformers.model import context_limit
from grpo.registry.lineage import Lineage, trace_lineage
from grpo.registry.store import Registry

CARD = "README.md"


def export(models: Registry, address: str, folder: Path) -> Lineage:
    """Write weights with adapters merged, tokenizer, chat template and a model card; returns the version's lineage.

    The files are those that are registered, verified by their digest. The folder appears when it is complete.
    Raises `ConfigError` for one that exists, `AddressError` for a version that does not.
    """
    if folder.exists():
        raise ConfigError(f"{folder} exists; name a folder that does not")
    version = models.resolve(address)
    lineage = trace_lineage(models, version)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with models.model_folder(version) as registered:
        shutil.copytree(registered / "model", partial)
        shutil.copytree(registered / "components" / "tokenizer", partial, dirs_exist_ok=True)
    context = context_limit(AutoConfig.from_pretrained(str(partial), trust_remote_code=False))
    (partial / CARD).write_text(model_card(lineage, folder, context=context), encoding="utf-8")
    partial.replace(folder)
    return lineage


def model_card(lineage: Lineage, folder: Path, *, context: int) -> str:
    """Model card in Markdown: result, data, training, and commands that serve the folder."""
    provenance = lineage.provenance
    training = provenance.config.get("training")
    algorithm = training.get("algorithm") if isinstance(training, dict) else None
    gates = "\n".join(
        f"| {name} | {'none' if value is None else f'{value:.4g}'} |" for name, value in provenance.checks.items()
    )
    return f"""# {lineage.name}, version {lineage.version}

Trained with {str(algorithm or "grpo").upper()} in {len(provenance.policies) - 1} iterations, seed {provenance.seed}.

**{lineage.tags.get("verdict", "no verdict")}**: {provenance.decision}

| gate | value |
| --- | --- |
{gates}

Policy `{provenance.policies[-1]}`, compared with `{provenance.champion}`; scenarios `{provenance.scenarios}`, sources
`{provenance.sources}`, base `{provenance.model}`, code `{provenance.code}`.

The chat template renders tools and their results as in training. To serve it:

    vllm serve {folder} --served-model-name {lineage.name} --max-model-len {context} --generation-config vllm
    transformers serve {folder}
"""
