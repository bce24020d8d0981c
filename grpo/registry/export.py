"""Export of a registered model as plain Hugging Face folders for another server.

DIR/config.json  model.safetensors  tokenizer.json  chat_template.jinja  README.md       adapters merged
DIR/base  DIR/adapters  README.md                                                        adapters apart
"""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import AutoConfig, AutoTokenizer

from grpo.artifacts import store_of
from grpo.errors import ConfigError
from grpo.policy.context import UNBOUNDED, context_limit
from grpo.policy.transformers.adapters import CONFIG
from grpo.registry.lineage import Lineage, trace_lineage
from grpo.registry.markdown import escaped
from grpo.registry.model_card import limits, result, task_and_data
from grpo.registry.serving import tool_parser, vllm_command
from grpo.registry.store import Registry
from grpo.storage.digests import MANIFEST
from grpo.storage.documents import Document

if TYPE_CHECKING:
    from grpo.policy.weights.registered import ModelVersion

CARD = "README.md"
_BASE, _ADAPTERS = "base", "adapters"


class Exported(Document):
    """Version of an exported folder, and the command that serves it."""

    lineage: Lineage
    command: str


def export(models: Registry, address: str, folder: Path, *, adapters: bool = False) -> Exported:
    """Write weights, tokenizer, chat template and a model card that `transformers` and vLLM read without this package.

    Adapters are merged into the weights, or with `adapters` they are written apart from their base. The files are the
    registered ones, verified by their digest. The folder appears when it is complete. Raises `ConfigError` if it exists
    already, or if `adapters` is set and the version has none, and `AddressError` if the version does not exist.
    """
    if folder.exists():
        raise ConfigError(f"{folder} exists. Name a folder that does not exist yet")
    if not str(folder).isprintable():
        raise ConfigError(f"{str(folder)!r} has control characters. Name another folder")
    version = models.resolve(address)
    lineage = trace_lineage(models, version)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        command = (_write_apart if adapters else _write_merged)(models, version, partial, folder)
        (partial / CARD).write_text(folder_card(lineage, folder, command, adapters=adapters), encoding="utf-8")
        readable = (partial / CARD).stat().st_mode & 0o777
        for path in partial.rglob("*.safetensors"):  # the package safetensors writes files that only this user can read
            path.chmod(readable)
        partial.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Exported(lineage=lineage, command=command)


def _write_merged(models: Registry, version: ModelVersion, partial: Path, folder: Path) -> str:
    with models.model_folder(version) as registered:
        shutil.copytree(registered / "model", partial)
        shutil.copytree(registered / "components" / "tokenizer", partial, dirs_exist_ok=True)
    context, parser = _limits(partial)
    return vllm_command(folder, version.name, context=context, parser=parser)


def _write_apart(models: Registry, version: ModelVersion, partial: Path, folder: Path) -> str:
    """Write the base and the adapters of the registered checkpoint, each with the tokenizer."""
    from grpo.learner.checkpoints import OPTIMIZER, OPTIMIZER_SHARDS, STATE, read_state

    checkpoint = version.checkpoint
    store = store_of(checkpoint)
    trained = store.path(checkpoint)
    base = read_state(trained).base
    if base is None:
        raise ConfigError(
            f"{version.name} version {version.version} was trained without adapters (training.lora). Leave out "
            "--adapters"
        )
    own = shutil.ignore_patterns(STATE, OPTIMIZER, OPTIMIZER_SHARDS, MANIFEST, "critic.safetensors")
    shutil.copytree(store.path(base), partial / _BASE, ignore=own)
    shutil.copytree(trained, partial / _ADAPTERS, ignore=own)
    path = partial / _ADAPTERS / CONFIG
    settings = json.loads(path.read_bytes()) | {"base_model_name_or_path": str((folder / _BASE).resolve())}
    path.write_text(json.dumps(settings, indent=1), encoding="utf-8")
    places = (folder / _ADAPTERS, int(settings["r"]))
    context, parser = _limits(partial / _BASE)
    return vllm_command(folder / _BASE, version.name, context=context, parser=parser, adapters=places)


def _limits(folder: Path) -> tuple[int | None, str | None]:
    """Context of a model folder, None if the model has no limit, and vLLM's parser for its tool calls."""
    limit = context_limit(AutoConfig.from_pretrained(str(folder), trust_remote_code=False))
    context = None if limit == UNBOUNDED else limit
    return context, tool_parser(AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False))


def folder_card(lineage: Lineage, folder: Path, command: str, *, adapters: bool) -> str:
    """Model card of an exported folder in Markdown."""
    provenance, name = lineage.provenance, lineage.name
    layout = (
        f"`{_BASE}` is the base model, `{_ADAPTERS}` are the adapters, which name their base by its absolute path. "
        "After the folder is moved, change `base_model_name_or_path` in `adapter_config.json`."
        if adapters
        else "A Hugging Face folder with the adapters, if the training had some, merged into the weights."
    )
    parts = [
        f"# {escaped(name)}, version {lineage.version}",
        *result(provenance, lineage.tags.get("verdict", "no verdict")),
        *task_and_data(provenance),
        "### Digests",
        f"Policy {escaped(provenance.policies[-1])}, compared with {escaped(provenance.champion)}. Scenarios "
        f"{escaped(provenance.scenarios)}, sources {escaped(provenance.sources)}, base {escaped(provenance.model)}, "
        f"code {escaped(provenance.code)}.",
        *limits(provenance),
        "### Use",
        f"{layout} The chat template renders tools and their results as in training.",
        f"    {command}",
        *([] if adapters else [f"    transformers serve {shlex.quote(str(folder))}"]),
        "The request names the model:",
        "    curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        f"""      -d '{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'""",
    ]
    return "\n\n".join(parts) + "\n"
