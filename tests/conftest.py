"""One home, one Prefect server and one tiny model for the whole test run."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

_CLOCK = {name: getattr(time, name) for name in ("sleep", "monotonic", "time", "perf_counter")}
HOME = Path(tempfile.mkdtemp(prefix="grpo-tests-"))
for _signum in (signal.SIGINT, signal.SIGHUP):  # ignored under `nohup` and in the background, also by what tests start
    if signal.getsignal(_signum) is signal.SIG_IGN:
        signal.signal(_signum, signal.default_int_handler if _signum == signal.SIGINT else signal.SIG_DFL)
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault(
    "CUDA_VISIBLE_DEVICES", ""
)  # tests expect the results of a CPU. `make gpu` shows the first device

from grpo_local import settings  # noqa: E402
from tests.ports import own_port  # noqa: E402

os.environ.update(settings.home_variables(HOME))  # each process of the tests has its own, whatever it inherits
os.environ["PREFECT_SERVER_API_PORT"] = str(own_port())
settings.apply()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the imports and the tests out of garbage collection: they live as long as the process.

    A full collection looks at each object of the process. Transformers' trainer makes one per update, which took a
    second and more with the packages and the 13,000 tests that a worker holds.
    """
    with settings.without_gc():
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the long files; workers take files in this order with `--no-loadscope-reorder`."""
    from tests.places import LONGEST

    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(place)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Refuse tests that replace a function of `time` itself, instead of the one that a module calls (`tests.clock`).

    A thread that an earlier test has left, and that sleeps in a loop, would never sleep, and filled the memory so.
    """
    result = yield
    assert all(getattr(time, name) is function for name, function in _CLOCK.items())
    return result


@pytest.fixture(scope="module", autouse=True)
def _garbage() -> Iterator[None]:
    """Collect the garbage of a file, so that a socket that a test leaves open is found in that file.

    What is left is not looked at again: a full collection of all that a worker imports takes half a second.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _tracking_uri() -> Iterator[None]:
    """A registry tells MLflow its address, which MLflow writes into the environment: not for the next test."""
    before = os.environ["MLFLOW_TRACKING_URI"]
    yield
    if os.environ.get("MLFLOW_TRACKING_URI") != before:
        import mlflow

        mlflow.set_tracking_uri(before)


@pytest.fixture(scope="session")
def home() -> Path:
    """Folder of everything that this test run leaves behind."""
    return HOME


@pytest.fixture(scope="session")
def server(home: Path) -> Iterator[str]:
    """A real Prefect server on a free port, started with the limit of open files that a shell has."""
    from grpo_local.servers import prefect_server
    from tests.file_limits import default_files
    from tests.new_homes import PREFECT, put_databases

    put_databases(home, PREFECT)
    with ExitStack() as stack:
        with default_files():
            url = stack.enter_context(prefect_server(home))
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()  # another test may have imported Prefect before there was an address
        yield url


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TINY: a random 2-layer Llama with a tokenizer and chat template made on the spot."""
    from grpo.pretrain.init_model import init_model, train_tokenizer

    texts = ["hello there how are you", "my order 1234 is broken", '{"name": "look_up", "arguments": {"order": "1"}}']
    tokenizer = train_tokenizer(texts * 20, vocabulary=320)
    model = init_model(tokenizer, hidden_size=32, layers=2, heads=4, kv_heads=2, mlp_size=64, seed=3)
    folder = tmp_path_factory.mktemp("tiny")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of torch that this process is alone in."""
    from torch import distributed

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


@pytest.fixture
def desk_config(tmp_path: Path) -> dict[str, Any]:
    """A short run on the embedded desk: two iterations, a few scenarios, seconds."""
    from tests.doubles import short_run

    return short_run(tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB; `mount -o remount,size=…` gives it more."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
