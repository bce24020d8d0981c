"""Section of docs/scale.md on two rollout servers that get new weights every 2 s, and are killed in mid-episode.

    python -m tests.benchmarks.killed_servers           measures for ten minutes, and writes the section
    python -m tests.benchmarks.killed_servers --show    prints it only

Two `grpo serve` generate episodes of the support desk with the shipped model. First only the weights are replaced,
then one of the servers is also killed (SIGKILL) at random moments at which it has conversations, and started again.
Each turn is recomputed in this process under the version that its span names. A sample of the turns is also recomputed
under another version, which shows that a wrong version would be noticed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from textwrap import fill

import numpy as np
import torch

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.artifacts import ArtifactStore
from grpo.config.rollout import RolloutSettings
from grpo.copies import ScenarioCopies
from grpo.learner.checkpoints import save_base
from grpo.learner.inference_backend import make_servers_policy
from grpo.policy.policy import Generation, Prompt, Sampling
from grpo.policy.servers.policy import KEY, ServersPolicy, ServersSampler, ServersSession
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.renderers.chat_template import Renderer
from grpo.rollout.episode import run_episode
from grpo.rollout.timeouts import Timeouts
from grpo.serving.access.keys import KeyStore
from grpo.trajectories import PolicySpan, Trajectory
from grpo_local import settings
from grpo_local.managed_process import free_port
from tests.benchmarks.desk import MODEL
from tests.benchmarks.measure import use_all_cores
from tests.benchmarks.page import Table, here
from tests.benchmarks.serve_sides import ours
from tests.benchmarks.slow_desk import SlowDesk
from tests.doubles import desk_scenarios, put_folder
from tests.scale import PAGE, keep
from tests.vllm.models import shifted

SECTION = "## Two servers that are killed"
VERSIONS, STD = 4, 0.01
"""Versions that take turns, and the deviation of the noise that makes each from the shipped model."""
CONVERSATIONS, DELAY_S = 16, 0.2
SWAP_S = 2.0
LIVES_S = (0.5, 6.0)
"""Shortest and longest time from the moment at which both servers are ready to the next kill."""
TOLERANCE = 1e-4
LONGEST_PAUSE_S = 0.5


class _Server:
    """A `grpo serve` that takes rollouts, and starts again at its port after it was killed."""

    def __init__(self, home: Path) -> None:
        self._home, self._port = home, free_port()
        self._stack = ExitStack()
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start the server, and wait until it is ready."""
        options, one_core = ("--set", "rollouts={}"), {"OMP_NUM_THREADS": "1"}
        side = ours(str(MODEL), self._home, port=self._port, options=options, environment=one_core)
        self._process = self._stack.enter_context(side).process

    def kill(self) -> None:
        """Kill all its processes at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """End the server."""
        self._stack.close()


@dataclass(slots=True, kw_only=True)
class _Record:
    """Record of the episodes, swaps and kills of a measurement."""

    begun: int = 0
    complete: list[tuple[Trajectory, tuple[PolicySpan, ...]]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """Errors of the episodes that did not end by themselves or by their limit of turns."""
    turns: int = 0
    swaps: list[tuple[float, float]] = field(default_factory=list)
    """Times at which servers began to load a version, and from which turns began with it."""
    waits: list[tuple[float, float]] = field(default_factory=list)
    """Begin and end of each time in which turns were in progress and none ended."""
    kills: list[int] = field(default_factory=list)
    """Conversations that the killed server had, at each kill."""


class _Play:
    """Conversations on servers, and the turns in progress."""

    def __init__(self, sampler: ServersSampler, record: _Record, renderer: Renderer) -> None:
        self.sampler, self.record, self.renderer = sampler, record, renderer
        self.sessions: set[ServersSession] = set()
        self.is_over = False
        self._in_progress, self._since = 0, 0.0

    def begin_turn(self) -> None:
        """Note the beginning of a turn."""
        if self._in_progress == 0:
            self._since = time.perf_counter()
        self._in_progress += 1

    def end_turn(self) -> None:
        """Note the end of a turn."""
        now = time.perf_counter()
        self.record.waits.append((self._since, now))
        self._in_progress, self._since = self._in_progress - 1, now
        self.record.turns += 1

    async def converse(self, number: int) -> None:
        """Play one episode after another."""
        scenarios, options = desk_scenarios(64), RolloutSettings(max_new_tokens=32)
        seeds = random.Random(number)
        while not self.is_over:
            self.record.begun += 1
            desk = SlowDesk(DELAY_S)
            with closing(_Session(self)) as session:
                self.sessions.add(session)
                try:
                    played = await run_episode(
                        MultiTurnAgent(),
                        desk,
                        ScenarioCopies(seeds.choice(scenarios)),
                        session,
                        self.renderer,
                        Sampling(temperature=1.0, max_new_tokens=32, seed=seeds.randrange(2**31)),
                        sample=number,
                        policy_hash="",
                        max_context=options.max_context,
                        on_truncation=options.on_truncation,
                        timeouts=Timeouts.start(options),
                    )
                except OSError as error:  # no server was left
                    self.record.lost.append(str(error))
                    continue
                finally:
                    self.sessions.remove(session)
            if played.stop == "failed":
                self.record.lost.append(str(played.error))
            else:
                self.record.complete.append((played, tuple(session.policy_spans)))

    async def swap(self, policies: Sequence[ServersPolicy]) -> None:
        """Replace the weights every `SWAP_S`, or as soon as the servers have loaded them if this takes longer."""
        for policy in cycle(policies):
            began = time.perf_counter()
            await self.sampler.prepare_policy(policy)
            self.sampler.replace_policy(policy)
            self.record.swaps.append((began, time.perf_counter()))
            await asyncio.sleep(max(0.0, SWAP_S - (time.perf_counter() - began)))

    async def kill(self, servers: Sequence[_Server], times: int) -> None:
        """Kill one of the servers at random moments at which it has conversations, and start it again."""
        moments = random.Random(times)
        for _ in range(times):
            await asyncio.sleep(moments.uniform(*LIVES_S))
            server = moments.choice(servers)
            while not (moved := [s for s in self.sessions if s.server is not None and s.server.url == server.url]):
                await asyncio.sleep(0.01)
            server.kill()
            self.record.kills.append(len(moved))
            await asyncio.to_thread(server.start)


class _Session(ServersSession):
    """A conversation that notes its turns."""

    def __init__(self, play: _Play) -> None:
        super().__init__(play.sampler)
        self._play = play

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """See `Session.generate`."""
        self._play.begin_turn()
        try:
            return await super().generate(prompt, sampling)
        finally:
            self._play.end_turn()


async def play(policies: Sequence[ServersPolicy], servers: Sequence[_Server], *, turns: int, kills: int) -> _Record:
    """Play at least `turns` turns, and until the servers were killed `kills` times."""
    record, renderer = _Record(), Renderer(policies[0].tokenizer, tools=SlowDesk(0).tools)
    async with policies[0].sampler(concurrency=CONVERSATIONS, renderer=renderer) as sampler:
        played = _Play(sampler, record, renderer)
        swapping = asyncio.create_task(played.swap([*policies[1:], policies[0]]))
        talking = [asyncio.create_task(played.converse(number)) for number in range(CONVERSATIONS)]
        killing = asyncio.create_task(played.kill(servers, kills))
        while record.turns < turns or not killing.done():
            for task in (swapping, *talking):
                if task.done():
                    task.result()
            await asyncio.sleep(0.1)
        await killing
        played.is_over = True
        await asyncio.gather(*talking)
        swapping.cancel()
        await asyncio.gather(swapping, return_exceptions=True)
    return record


def errors(
    trajectory: Trajectory, spans: Sequence[PolicySpan], policies: dict[str, TransformersPolicy], *, shift: int = 0
) -> list[tuple[int, float]]:
    """Tokens of each turn, and the largest difference of its log-probabilities from the ones of its version.

    With a `shift`, the version that many places later is taken.
    """
    names = list(policies)
    turns = [turn for turn in trajectory.turns if turn.message.role == "assistant"]
    ids = torch.as_tensor(trajectory.token_ids, dtype=torch.long)[None]
    computed: dict[str, torch.Tensor] = {}
    measured = []
    for turn in turns:
        sampled = np.flatnonzero(trajectory.loss_mask[turn.start : turn.stop]) + turn.start
        version = [span.policy_hash for span in spans if span.start <= sampled[0]][-1]
        name = names[(names.index(version) + shift) % len(names)]
        if name not in computed:
            with torch.no_grad():
                computed[name] = torch.log_softmax(policies[name].model(input_ids=ids).logits[0], dim=-1)
        own = computed[name][sampled - 1, ids[0, sampled]].numpy()
        measured.append((len(sampled), float(np.abs(own - trajectory.sampler_logprobs[sampled]).max())))
    return measured


def pauses(record: _Record) -> list[float]:
    """Of each swap, the longest time without the end of a turn while turns were in progress, until the next swap."""
    longest = []
    for (begin, _), (end, _) in pairwise(record.swaps):
        longest.append(max((b - a for a, b in record.waits if a < end and b > begin), default=0.0))
    return longest


def between_swaps(record: _Record) -> float:
    """Median seconds from one swap to the next."""
    return median(later - earlier for (earlier, _), (later, _) in pairwise(record.swaps))


def rows(name: str, record: _Record, policies: dict[str, TransformersPolicy]) -> tuple[tuple[str, ...], int, float]:
    """Row of the table, tokens under a wrong version, and the p99 of the pauses."""
    turns = [turn for played, spans in record.complete for turn in errors(played, spans, policies)]
    wrong = sum(tokens for tokens, error in turns if error > TOLERANCE)
    pause = float(np.quantile(pauses(record), 0.99))
    assert record.begun == len(record.complete) + len(record.lost)
    several = sum(len(spans) > 1 for _, spans in record.complete)
    row = (
        name,
        f"{record.turns:,}",
        f"{len(record.swaps)}, every {between_swaps(record):.1f} s",
        f"{len(record.kills)}" + (f" (with {median(record.kills):g} conversations)" if record.kills else ""),
        f"{len(record.complete):,}",
        f"{len(record.lost)}",
        f"{several:,}",
        f"{wrong} of {sum(tokens for tokens, _ in turns):,}",
        f"{max(error for _, error in turns):.1e}",
        f"{pause:.2f}",
    )
    return row, wrong, pause


def section(turns: int, kills: int) -> str:
    """Measurement of both parts, and the bars."""
    machine = here()
    with TemporaryDirectory() as name:
        folder = Path(name)
        home = folder / "home"
        home.mkdir()
        os.environ[KEY] = KeyStore(home / "keys.json").create("trainer", ("rollout",))
        servers = []
        try:
            servers += [_Server(home), _Server(home)]
            store = ArtifactStore(str(folder / "store"))
            models, policies = {}, []
            options = RolloutSettings(backend="servers", servers=tuple(server.url for server in servers))
            for seed in range(VERSIONS):
                shifted(MODEL, folder / f"version-{seed}", std=STD, seed=seed)
                model = load(folder / f"version-{seed}")
                models[model.hash] = model
                checkpoint = put_folder(store, "checkpoint", partial(save_base, model))
                policies.append(make_servers_policy(store, checkpoint, options))
            swapped = asyncio.run(play(policies, servers, turns=turns, kills=0))
            killed = asyncio.run(play(policies, servers, turns=turns, kills=kills))
        finally:
            for server in servers:
                server.stop()
    first, wrong, pause = rows("weights replaced", swapped, models)
    second, wrong_killed, _ = rows("and servers killed", killed, models)
    sample = [turn for played, spans in swapped.complete[:50] for turn in errors(played, spans, models, shift=1)]
    noticed = sum(error > TOLERANCE for _, error in sample)
    head = (
        "part",
        "turns",
        "swaps",
        "kills",
        "episodes complete",
        "lost",
        "with several versions",
        "tokens under a wrong version",
        "largest difference",
        "pause p99 s",
    )
    ended = f"{len(killed.complete)} complete, {len(killed.lost)} lost and counted"
    between = between_swaps(swapped)
    played, wrong, lost = swapped.turns + killed.turns, wrong + wrong_killed, len(swapped.lost) + len(killed.lost)
    bars = (
        ("turns, both parts", f"{played:,}", "10,000", played >= 10_000),
        ("from one swap to the next, without kills", f"{between:.1f} s", f"{SWAP_S:g} s", between <= 1.05 * SWAP_S),
        ("episodes lost, both parts", f"{lost}", "0", lost == 0),
        ("tokens under a wrong version, both parts", f"{wrong}", "0", wrong == 0),
        ("pause p99 without kills", f"{pause:.2f} s", f"{LONGEST_PAUSE_S:g} s", pause <= LONGEST_PAUSE_S),
        ("kills in mid-episode, every episode complete or counted", f"{len(killed.kills)}: {ended}", "20", kills >= 20),
    )
    verdicts = tuple((what, value, bar, "met" if met else "**missed**") for what, value, bar, met in bars)
    text = (
        "Written by `python -m tests.benchmarks.killed_servers`. Two `grpo serve` on one machine generate episodes of "
        f"the support desk with the shipped model, {CONVERSATIONS} at once, with tools that take {DELAY_S:g} s. "
        f"{VERSIONS} versions of the weights take turns: the next one is loaded every {SWAP_S:g} s, or later if the "
        "servers have not loaded the one before. In the second part one of the servers is killed (SIGKILL) at random "
        f"moments at which it has conversations, {LIVES_S[0]:g} to {LIVES_S[1]:g} s after both were ready, and is then "
        "started again. Each turn is recomputed under the version that its span names, and all its tokens count as "
        f"wrong if a log-probability differs by more than {TOLERANCE:g}. The check can tell versions apart: "
        f"recomputed under the next version, {noticed} of {len(sample)} turns differ by more than that. The pause of a "
        "swap is the longest interval, before the next swap, during which turns were in progress but none ended. It "
        "therefore includes the time that a turn takes, and in the second part also the kills. The machine had other "
        f"work as well, with a load average of {os.getloadavg()[2]:.0f} at the end ({machine})."
    )
    tables = (
        Table(head=head, rows=(first, second)).markdown(),
        Table(head=("bar", "measured", "target", "verdict"), rows=verdicts).markdown(),
    )
    return "\n\n".join((fill(text, 120, break_long_words=False, break_on_hyphens=False), *tables))


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=4_000, help="turns of each part, at least")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--show", action="store_true", help="print the section instead of writing it to the page")
    given = parser.parse_args()
    settings.apply()
    use_all_cores()
    text = section(given.turns, given.kills)
    if given.show:
        sys.stdout.write(f"{text}\n")
    else:
        keep(text, PAGE, SECTION)


if __name__ == "__main__":
    main()
