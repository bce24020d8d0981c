"""`grpo train-node`: take part in the updates of another node."""

from __future__ import annotations

from grpo_cli.command import console, start_command


def train_node() -> None:
    """Take part in each update that another machine announces in the folder GRPO_NODES, until interrupted.

    Use it if `training.nodes` is above 1: run it on each machine except the one of the train stage. All of them need
    the same version of grpo, the store at the same path, and GLOO_SOCKET_IFNAME or, with GPUs, NCCL_SOCKET_IFNAME: the
    interface of their network.

    Example: grpo train-node
    """
    start_command(services=False)
    from grpo.identity.code import source_digest
    from grpo.learner.distributed import nodes_folder
    from grpo.learner.nodes import follow

    for line in follow(nodes_folder(), sources=source_digest()):
        console.print(line)
