"""Make the scenario pack and the base model of `make run`. Both ship in data/, so a run does not need this flow."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from grpo.config.pretrain import PretrainConfig
from grpo.environments.support_desk.demonstrations import demonstrate, successful_demonstrations
from grpo.environments.support_desk.desk import TOOLS
from grpo.environments.support_desk.scenario_generator import Phrasebook, generate_scenarios
from grpo.storage.files import write_atomically


@task(cache_policy=NO_CACHE)
def draw_scenarios(config: PretrainConfig) -> int:
    """Write the scenario pack, one JSON object per line."""
    book = Phrasebook.load(Path(config.scenario_phrasebook))
    cases = itertools.islice(generate_scenarios(book, seed=config.seed, prefix="desk"), config.scenarios)
    lines = [case.model_dump_json(exclude_defaults=True) for case in cases]
    write_atomically(Path(config.scenarios_path), "\n".join(lines) + "\n")
    return len(lines)


@task(cache_policy=NO_CACHE)
def write_demonstrations(config: PretrainConfig) -> int:
    """Write successful conversations of the clerk with customers of the other phrasebook, one per line."""
    book = Phrasebook.load(Path(config.demonstration_phrasebook))
    rng = random.Random(config.seed)
    cases = generate_scenarios(book, seed=config.seed, prefix="demonstration")
    conversations = itertools.islice(successful_demonstrations(cases, rng), config.written_demonstrations)
    lines = [json.dumps({"messages": [turn.to_template() for turn in turns[1:]]}) for turns in conversations]
    write_atomically(Path(config.demonstrations_path), "\n".join(lines) + "\n")
    return len(lines)


@task(cache_policy=NO_CACHE)
def imitate_clerk(config: PretrainConfig) -> float:
    """Let the clerk serve customers of the other phrasebook, and train the base model on the conversations."""
    from grpo.pretrain.base_model import make_base_model  # imports PyTorch, which `grpo deploy` does not need

    book = Phrasebook.load(Path(config.demonstration_phrasebook))
    rng = random.Random(config.seed)
    cases = itertools.islice(generate_scenarios(book, seed=config.seed, prefix="demonstration"), config.demonstrations)
    conversations = [demonstrate(case, rng) for case in cases]
    return make_base_model(conversations, TOOLS, config, Path(config.model_path))


@flow(name="pretrain")
def pretrain(config: PretrainConfig) -> float:
    """Draw the scenarios and demonstrations, then make the base model from demonstrations of mixed quality.

    Args:
        config: Numbers of scenarios and demonstrations, sizes, and output paths.

    """
    draw_scenarios(config)
    write_demonstrations(config)
    return imitate_clerk(config)
