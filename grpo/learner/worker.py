"""One of the processes that share an update; `torchrun` starts it with the path of an order.

torchrun --nproc-per-node 2 -m grpo.learner.worker order.json
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import distributed

from grpo.errors import GRPOError
from grpo.learner.launch import Order, Refusal
from grpo.learner.update import update
from grpo.learner.world import World


def main(path: Path) -> None:
    """Do this process's part; the first one leaves the metrics, any of them the reason why it cannot be done."""
    order = Order.model_validate_json(path.read_bytes())
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    world = World(rank=distributed.get_rank(), size=distributed.get_world_size())
    try:
        metrics = update(
            order.scored,
            order.parent,
            order.base,
            order.target,
            order.settings,
            seed=order.seed,
            iteration=order.iteration,
            base_artifact=order.base_artifact,
            world=world,
        )
    except GRPOError as error:
        refusal = Refusal(kind=type(error).__name__, message=str(error))
        (path.parent / "refusal.json").write_text(refusal.model_dump_json(), encoding="utf-8")
        raise
    if world.rank == 0:
        (path.parent / "metrics.json").write_text(metrics.model_dump_json(), encoding="utf-8")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
