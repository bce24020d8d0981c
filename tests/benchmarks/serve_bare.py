"""Sampler of the rollouts in a process of its own, without a server: what a served token is compared with.

python -m tests.benchmarks.serve_bare FOLDER      plays the load of each line that it reads, and prints tokens a second
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from subprocess import PIPE, Popen

from grpo.messages import Message
from grpo.policy.policy import Prompt, Sampler, Sampling
from grpo.policy.renderer import make_renderer
from grpo.policy.transformers.model import TransformersPolicy
from grpo.policy.transformers.model import load as load_policy
from grpo.renderers.chat_template import Renderer
from tests.benchmarks.serve_load import Load
from tests.benchmarks.serve_sides import BARE, Side
from tests.places import ROOT

_ANSWER = "rate "


@contextmanager
def bare(folder: Path) -> Iterator[Side]:
    """The sampler as a side, which rests while it is not asked."""
    command = [sys.executable, "-m", "tests.benchmarks.serve_bare", str(folder)]
    with Popen(command, cwd=ROOT, stdin=PIPE, stdout=PIPE, start_new_session=True) as process:
        side = Side(name=BARE, port=0, model=folder.name, process=process)
        try:
            yield side
        finally:
            side.resume()
            process.kill()


def bare_rate(side: Side, load: Load, warm_s: float) -> float:
    """Tokens a second of one round."""
    process = side.process
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{warm_s} {load.model_dump_json()}\n".encode())
    process.stdin.flush()
    for line in process.stdout:
        if line.startswith(_ANSWER.encode()):
            return float(line.split()[1])
    raise RuntimeError("the bare sampler ended")


async def _play(sampler: Sampler, renderer: Renderer, load: Load) -> list[float]:
    """Times of the tokens of a load; those of a turn are spread evenly over it."""
    times: list[float] = []
    numbers = count()
    end = time.monotonic() + load.seconds
    system = Message(role="system", content=load.system or "")

    async def stream() -> None:
        while time.monotonic() < end:
            number, session = next(numbers), sampler.open()
            history: list[Message] = []
            for index in range(load.turns):
                line = Message(role="user", content=load.lines[(7 * number + index) % len(load.lines)])
                new = renderer.build_continuation(history, [line]) if history else renderer.build_prompt([system, line])
                sampling = Sampling(temperature=1.0, max_new_tokens=load.max_tokens, seed=number)
                began = time.monotonic()
                generation = await session.generate(Prompt(new_ids=new), sampling)
                step_s = (time.monotonic() - began) / len(generation.token_ids)
                times.extend(began + step_s * (k + 1) for k in range(len(generation.token_ids)))
                history += [*([] if history else [system]), line, renderer.parse_reply(generation.token_ids)]
            session.close()

    await asyncio.gather(*(stream() for _ in range(load.streams)))
    return times


async def _rate(policy: TransformersPolicy, renderer: Renderer, load: Load, warm_s: float) -> float:
    """Tokens a second of a load, its first seconds left out."""
    async with policy.sampler(concurrency=load.streams, renderer=renderer) as sampler:
        began = time.monotonic()
        times = await _play(sampler, renderer, load)
    return sum(began + warm_s < moment < began + load.seconds for moment in times) / (load.seconds - warm_s)


def main(folder: Path) -> None:
    """Play the load of each line on the standard input."""
    policy = load_policy(folder)
    renderer = make_renderer(policy.tokenizer, tools=())
    for line in sys.stdin:
        warm_s, _, text = line.partition(" ")
        rate = asyncio.run(_rate(policy, renderer, Load.model_validate_json(text), float(warm_s)))
        print(f"{_ANSWER}{rate}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
