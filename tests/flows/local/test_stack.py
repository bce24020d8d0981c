from __future__ import annotations

import socket
from pathlib import Path

from flows.local.stack import worker_name


def test_each_home_of_a_machine_has_workers_of_its_own(tmp_path: Path):
    """At one Prefect server they would end each other's runs; the same path, written in another way, is one home."""
    one, other = tmp_path / "one", tmp_path / "other"
    names = {worker_name(home, "cpu") for home in (one, other, other / ".." / "one")}
    assert len(names) == 2
    assert all(name.startswith(f"cpu@{socket.gethostname()}-") for name in names)
