from __future__ import annotations

import socket
from pathlib import Path

from grpo_local.stack import worker_name


def test_each_home_of_a_machine_has_workers_of_its_own(tmp_path: Path):
    """At one Prefect server they would kill each other's runs; another spelling of a path is the same home."""
    first, second = tmp_path / "first", tmp_path / "second"
    names = {worker_name(home, "cpu") for home in (first, second, second / ".." / "first")}
    assert len(names) == 2
    assert all(name.startswith(f"cpu@{socket.gethostname()}-") for name in names)
