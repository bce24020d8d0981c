"""Checks of the model: files, chat template, context, training settings, backend and room for checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from grpo.artifacts import ArtifactStore
from grpo.errors import CapacityError, ConfigError, DataError, GRPOError, StorageError
from grpo.policy.catalog import is_weights
from grpo.policy.weights.sources import model_description, model_plan
from grpo.preflight.facts import Facts
from grpo.storage.files import nearest_existing
from grpo.storage.moved_stores import present_address
from grpo.trajectories import Trajectory

_FLOAT32 = 4
_GIB = 2**30


def addresses(facts: Facts) -> Iterator[Exception]:
    """Pin models and data sets: an alias to its version, a branch to its commit."""
    facts.config()
    yield from ()


def files(facts: Facts) -> Iterator[Exception]:
    """Read the headers of the weights."""
    facts.model()
    yield from ()


def template(facts: Facts) -> Iterator[Exception]:
    """Render with the chat template, or the user's renderer, and with the tools of environment and agent."""
    facts.renderer()
    yield from ()


def backend(facts: Facts) -> Iterator[Exception]:
    """Import the packages that `policy.quantization` and `rollout.backend` need, and look for the key of servers."""
    config = facts.given
    try:
        if config.policy.quantization is not None:
            from grpo.policy.transformers.quantization import bitsandbytes_config

            bitsandbytes_config(config.policy.quantization)
    except GRPOError as error:
        yield error
    if config.rollout.backend == "vllm":
        import grpo.policy.vllm  # noqa: F401 - raises if the package is missing
    if config.rollout.backend == "servers" and config.rollout.started_servers is None:
        from grpo.policy.servers.policy import server_key

        server_key()


def started_servers(facts: Facts) -> Iterator[Exception]:
    """Find the devices of the rollout servers that the run starts, and room for them next to the training."""
    settings = facts.given.rollout.started_servers
    if settings is None:
        return
    import torch

    from grpo.learner.estimates.memory import memory_estimate
    from grpo.learner.estimates.servers_memory import free_memory, servers_memory

    has_gpu, count = torch.cuda.is_available(), torch.cuda.device_count()
    if missing := [device for device in settings.devices if device >= count]:
        yield CapacityError(
            f"rollout.servers.devices names {', '.join(map(str, missing))}, and this machine has {count} CUDA devices. "
            "Name others, or leave devices out"
        )
        return
    rollout, sizes = facts.given.rollout, facts.sizes()
    train = rollout.scenarios * rollout.group_size
    concurrent = rollout.concurrent_episodes(train=train, heldout=len(facts.heldout()) * facts.given.evaluation.samples)
    memory = servers_memory(sizes, settings.count, episodes=concurrent, max_context=rollout.max_context)
    training = memory_estimate(
        sizes,
        facts.given.training,
        episodes=0,
        max_context=rollout.max_context,
        teacher=facts.teacher_sizes(),
        keeps_parent=rollout.overlaps_updates,
        checks_earlier_version=rollout.mode == "continuous",
    ).peak
    devices = settings.devices or (0,) * settings.count
    for device in sorted(set(devices)) if has_gpu else (0,):
        servers = devices.count(device) if has_gpu else settings.count
        free = torch.cuda.mem_get_info(device)[0] if has_gpu else free_memory()[0]
        trains = device == 0  # the run uses the first device
        needed = servers * memory.peak + trains * training
        if needed > free:
            place = f"CUDA device {device}" if has_gpu else "this machine"
            yield CapacityError(
                f"rollout.servers.count {settings.count}: {place} has {free / _GIB:.2f} GiB free, and {servers} "
                f"servers with {memory.peak / _GIB:.2f} GiB each need {needed / _GIB:.2f} GiB"
                f"{' with the training' if trains else ''}. Lower the count or rollout.concurrency, or list servers on "
                "other machines"
            )


def nodes(facts: Facts) -> Iterator[Exception]:
    """Find the folder and the network of the nodes, if the updates run on several and begin on this machine."""
    sent = facts.given.compute.gpu_stages
    if facts.given.training.nodes == 1 or (sent is not None and "train" in sent.stages):
        return
    from grpo.learner.distributed import check_devices, nodes_folder

    for check in (nodes_folder, lambda: check_devices(facts.given.training)):
        try:
            check()
        except GRPOError as error:
            yield error


def teacher(facts: Facts) -> Iterator[Exception]:
    """Read the headers of the teacher's weights, compare its tokenizer with the policy's, and find room for hints."""
    from grpo.learner.teacher_prompts import hints_of
    from grpo.policy.context import context_limit
    from grpo.policy.tokenizer import check_same_tokenizer, load_tokenizer

    settings, address = facts.config().training.distillation, facts.config().training.teacher
    if settings is None:
        return
    if address is not None:
        if not is_weights(address):
            raise ConfigError(
                f"training.distillation.teacher_model_name_or_path {address} names a server or a script, which gives "
                "no distribution over the vocabulary. Set it to a folder, org/name, file.gguf or models:/name@alias"
            )
        with model_description(model_plan(address).address) as described:
            check_same_tokenizer(facts.tokenizer(), load_tokenizer(described.tokenizer), address=address)
    sizes = facts.teacher_sizes() or facts.sizes()
    hints = list(hints_of(facts.playable(), settings.privileged_context).values())
    longest = max(map(len, facts.tokenizer()(hints)["input_ids"]), default=0) if hints else 0
    if (limit := context_limit(sizes.config)) < facts.max_context() + longest:
        yield ConfigError(
            f"an episode may have {facts.max_context()} tokens and its hint {longest} more, but the teacher reads "
            f"{limit}. Lower rollout.max_context to {limit - longest} or less, or choose a teacher that reads more"
        )


def training(facts: Facts) -> Iterator[Exception]:
    """Build the model without weights, with adapters and activation checkpointing. Refuse a learning rate of 0."""
    facts.sizes()
    if not facts.given.training.learning_rate and facts.given.training.algorithm != "trpo":
        yield ConfigError("training.learning_rate 0 changes no weight, so that there would be no candidate. Raise it")
    if facts.given.training.gradient_checkpointing:
        from grpo.learner.performance import activation_checkpointing

        with activation_checkpointing(facts.empty_model()):
            pass


def context(facts: Facts) -> Iterator[Exception]:
    """Compare the new tokens of a turn with the tokens that an episode may have."""
    from grpo.policy.context import describe_context

    rollout, limit = facts.given.rollout, facts.max_context()
    if rollout.max_new_tokens >= limit:
        own = describe_context(facts.sizes().config)
        whose = "rollout.max_context" if limit == rollout.max_context else f"the context of the model ({own})"
        yield ConfigError(
            f"rollout.max_new_tokens {rollout.max_new_tokens} leaves no room for a prompt within {limit} tokens, "
            f"{whose}. Lower it, or raise the other"
        )


def episodes(facts: Facts) -> Iterator[Exception]:
    """Play scenarios with scripted replies, to find prompts that do not fit and an environment that cannot begin."""
    played = facts.episodes()
    unread = [trajectory for trajectory in played if not _replied(trajectory)]
    too_long = [trajectory for trajectory in unread if trajectory.stop == "truncated"]
    if too_long:
        first = max(too_long, key=lambda trajectory: len(trajectory.token_ids))
        rollout = facts.given.rollout
        yield ConfigError(
            f"the prompt of scenario {first.scenario_id} has {len(first.token_ids)} tokens, and with "
            f"rollout.max_new_tokens {rollout.max_new_tokens} it does not fit into {facts.max_context()}, the lower of "
            f"rollout.max_context {rollout.max_context} and the model's context, so no reply would be generated. Raise "
            "rollout.max_context, choose a model that reads more, or leave such scenarios out"
        )
    failed = [t for t in unread if t.stop == "failed" and not str(t.error).startswith("TimeoutError")]
    if failed and len(failed) == len(played):
        yield DataError(
            f"the environment fails before the agent's first reply in each of {len(played)} scenarios that were tried. "
            f"The first is {failed[0].scenario_id}: {failed[0].error}. Correct the environment"
        )


def _replied(trajectory: Trajectory) -> bool:
    return any(turn.message.role == "assistant" for turn in trajectory.turns)


def store_place(facts: Facts) -> Iterator[Exception]:
    """Refuse a store that was moved elsewhere, because everything would be computed again."""
    store = ArtifactStore(facts.given.store)
    present = present_address(store.uri)
    if present != store.uri and not store.documents.names("results"):
        yield ConfigError(f"the store {store.uri} was moved to {present}. Set `store: {present}`")


def disk(facts: Facts) -> Iterator[Exception]:
    """Compare the free space of a local store with the checkpoints that the run keeps, at 4 bytes per weight."""
    store = ArtifactStore(facts.given.store)
    if not store.is_local:
        return
    sizes = facts.sizes()
    whole, trained = _FLOAT32 * sizes.parameters, _FLOAT32 * sizes.trained
    kept = facts.given.save_total_limit or facts.given.training.iterations
    needed, free = whole + kept * trained, shutil.disk_usage(nearest_existing(Path(store.root))).free
    if needed > free:
        yield StorageError(
            f"store {store.uri} has {free / _GIB:.2f} GiB free, and the base with {kept} checkpoints takes about "
            f"{needed / _GIB:.2f} GiB. Free space, set `store` elsewhere, or lower save_total_limit"
        )
