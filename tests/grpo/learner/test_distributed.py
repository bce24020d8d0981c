"""Collective operations of an update's processes, alone and with two over gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from grpo.learner.distributed import ProcessGroup
from tests.places import ROOT


def test_every_item_is_in_one_shard():
    """Of five items two processes have 0 2 4 and 1 3; one process has all."""
    assert [ProcessGroup(rank=rank, size=2).shard([0, 1, 2, 3, 4]) for rank in (0, 1)] == [[0, 2, 4], [1, 3]]
    assert ProcessGroup().shard([0, 1, 2]) == [0, 1, 2]


def test_a_single_process_needs_no_communication():
    """Gradients are unchanged, and a missing one stays missing."""
    alone = ProcessGroup()
    assert alone.gather((1, 2)) == [1, 2]
    assert (alone.any(True), alone.any(False)) == (True, False)
    with_gradient, without = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    with_gradient.grad = torch.tensor([1.0, 2.0])
    alone.sum_gradients([with_gradient, without])
    assert (with_gradient.grad.tolist(), without.grad) == ([1.0, 2.0], None)


_PROCESS = """
import json, sys
import torch
from torch import distributed, nn
from grpo.learner.distributed import ProcessGroup

rank = int(sys.argv[1])
distributed.init_process_group("gloo", init_method=f"file://{sys.argv[2]}/meeting", rank=rank, world_size=2)
group = ProcessGroup(rank=rank, size=2)
first, second, frozen = (nn.Parameter(torch.ones(shape)) for shape in ((2, 2), (3,), (1,)))
frozen.requires_grad_(False)
first.grad = torch.full((2, 2), 1.0 + rank)
if rank:
    second.grad = torch.tensor([1.0, 2.0, 3.0])
group.sum_gradients([first, frozen, second])
shared = {
    "gather": group.gather([f"{rank}a", f"{rank}b"][: rank + 1]),
    "any": [group.any(rank == 1), group.any(False)],
    "first": first.grad.tolist(),
    "second": second.grad.tolist(),
    "frozen": frozen.grad,
}
distributed.destroy_process_group()
print(json.dumps(shared))
"""


def test_two_processes_gather_items_and_sum_gradients(tmp_path: Path):
    """Rank 0 has one item and gradient 1, rank 1 two items and gradients 2 and 1 2 3; what is frozen has none."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _PROCESS, str(rank), str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for rank in (0, 1)
    ]
    for process in processes:
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0
        assert json.loads(output.splitlines()[-1]) == {
            "gather": ["0a", "1a", "1b"],
            "any": [True, False],
            "first": [[3.0, 3.0], [3.0, 3.0]],
            "second": [1.0, 2.0, 3.0],
            "frozen": None,
        }
