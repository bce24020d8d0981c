"""Transfer of the user's modules to another machine, through the artifact store.

The other machine may have modules with these names itself, so `check_modules` compares them.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

from grpo.artifacts import Artifact, ArtifactStore
from grpo.errors import ConfigError
from grpo.identity.code import external_digests, user_code_files
from grpo.user_objects import make_importable


def write_code_artifact(store: ArtifactStore, inputs: Mapping[str, Any]) -> Artifact | None:
    """Store the sources of the user's modules that a stage imports. Returns None if its inputs name none."""
    files = user_code_files(inputs.values())
    if not files:
        return None
    with store.new_folder("code") as new:
        for name, path in files.items():
            (new.path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, new.path / name)
    return new.artifact


def receive_code(store: ArtifactStore, code: Artifact) -> None:
    """Make the user's modules from another machine importable here. Modules that are on the path already come first."""
    make_importable(store.path(code))


def module_digests(inputs: Mapping[str, Any]) -> dict[str, str]:
    """Digests of the user's modules that a stage's inputs name, and versions of the packages that they import."""
    digests = external_digests(inputs.values())
    return {name: digest for name, digest in digests.items() if ", module " in name or ", package " in name}


def check_modules(inputs: Mapping[str, Any], modules: Mapping[str, str]) -> None:
    """Raise `ConfigError` if the user's modules here differ from the ones on the machine that sent the stage."""
    here = module_digests(inputs)
    for name in sorted({*here, *modules}):
        if here.get(name) != modules.get(name):
            raise ConfigError(
                f"module {name} differs: this worker has digest {here.get(name, 'none')}, the run that sent the stage "
                f"{modules.get(name, 'none')}. Remove the other version from the worker's path, or install the same "
                "version on both"
            )
