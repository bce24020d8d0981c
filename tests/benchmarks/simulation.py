"""Section of docs/internals/simulations.md on two measured servers and the prediction of the simulator next to them.

    python -m tests.benchmarks.simulation           measures for some minutes, and writes the section
    python -m tests.benchmarks.simulation --show    prints it only

The servers are two `grpo serve` with the shipped model, which plays the support desk with tools that answer slowly. An
update is a wait, so that it does not take cores from the servers. The speed of the simulated servers is fitted to
episodes without waits, and everything else is predicted.
"""

from __future__ import annotations

import copy
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, product
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from textwrap import fill
from typing import Any

import numpy as np
import torch

from grpo.artifacts import ArtifactStore
from grpo.config.rollout import RolloutSettings
from grpo.learner.checkpoints import save_base
from grpo.learner.inference_backend import make_servers_policy
from grpo.policy.policy import Generation, Prompt, Sampling
from grpo.policy.servers.policy import KEY, ServersPolicy, ServersSampler, ServersSession
from grpo.policy.transformers.model import TransformersPolicy
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect
from grpo.rollout.continuous import ContinuousRollout
from grpo.rollout.live import LiveRollout
from grpo.rollout.windows import GroupQueue
from grpo.scenario import Scenario
from grpo.serving.access.keys import KeyStore
from grpo.trajectories import Trajectory
from grpo_local import settings
from tests.benchmarks.desk import MODEL, desk_policy
from tests.benchmarks.measure import in_turn, seconds
from tests.benchmarks.page import Table
from tests.benchmarks.serve_sides import ours
from tests.benchmarks.simulated_servers import Clock, Episode, Rollout, SimulatedTurn, Speed
from tests.benchmarks.simulator import Mode, Plan, Simulation
from tests.benchmarks.slow_desk import SlowDesk
from tests.doubles import desk_scenarios, put_folder
from tests.places import INTERNALS
from tests.scale import keep

SECTION = "## Two servers, measured and simulated"
PLAYED, BATCHES = 4, (2, 8)
"""Scenarios of the calibration and the group sizes of its batches."""
REPEATS = 3
SCENARIOS, GROUP, UPDATES = 8, 4, 4
DELAY_S, UPDATE_S = 2.0, 6.0
STALENESS = (1, 2)
SLOTS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    reads: int
    tokens: int
    seconds: float


class _TimedSession(ServersSession):
    """A conversation that notes the time of each turn."""

    def __init__(self, sampler: ServersSampler, turns: list[_Timed]) -> None:
        super().__init__(sampler)
        self._noted = turns

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """See `Session.generate`."""
        began = time.perf_counter()
        generation = await super().generate(prompt, sampling)
        taken = time.perf_counter() - began
        self._noted.append(_Timed(reads=len(prompt.new_ids), tokens=len(generation.token_ids), seconds=taken))
        return generation


class _TimedPolicy:
    """A policy on servers that notes the time of each turn."""

    def __init__(self, policy: ServersPolicy, turns: list[_Timed]) -> None:
        self.hash, self.max_context, self.tokenizer = policy.hash, policy.max_context, policy.tokenizer
        self._policy, self._turns = policy, turns

    @asynccontextmanager
    async def sampler(self, *, concurrency: int, renderer: Renderer) -> AsyncIterator[Any]:
        """See `Policy.sampler`."""
        async with self._policy.sampler(concurrency=concurrency, renderer=renderer) as sampler:
            sampler.open = partial(_TimedSession, sampler, self._turns)  # type: ignore[method-assign]
            yield sampler


def _episode(trajectory: Trajectory, delay_s: float) -> Episode:
    """The work of a trajectory. Each tool call takes `delay_s`."""
    turns, read = [], 0
    for turn in trajectory.turns:
        if turn.message.role == "assistant":
            wait_s = delay_s * len(turn.message.tool_calls)
            turns.append(SimulatedTurn(prompt=turn.start - read, tokens=turn.stop - turn.start, wait_s=wait_s))
            read = turn.stop
    return tuple(turns)


def _rollout_s(speed: Speed, episodes: Sequence[Episode], *, servers: int, concurrency: int) -> float:
    """Simulated seconds of episodes on servers."""
    clock = Clock()
    rollout, ended = Rollout(clock, speed, servers=servers, concurrency=concurrency), 0

    def end(_: object) -> None:
        nonlocal ended
        ended += 1

    for episode in episodes:
        rollout.begin(episode, end)
    clock.run(lambda: ended == len(episodes))
    return clock.now


def fit(turns: Sequence[_Timed], batches: Sequence[tuple[Sequence[Episode], float]]) -> Speed:
    """Speed of one server: from turns that had it for themselves, and from the seconds of whole batches.

    Least squares give the seconds of a turn, of a token that is read, and of a token that is generated. A search over
    twenty parts of each tells which part of a turn keeps others waiting, and what a further turn adds to a step.
    """
    rows = np.asarray([(1.0, turn.reads, turn.tokens) for turn in turns])
    turn_s, read_s, step_s = np.linalg.lstsq(rows, np.asarray([turn.seconds for turn in turns]), rcond=None)[0]
    turn_s, read_s, step_s = max(turn_s, 0.0), max(read_s, 0.0), max(step_s, 1e-6)
    parts = np.linspace(0, 1, 21)

    def speed(exclusive: float, further: float) -> Speed:
        return Speed(
            slots=SLOTS,
            step_s=step_s,
            further_s=further * step_s,
            request_s=exclusive * turn_s,
            latency_s=(1 - exclusive) * turn_s,
            prompt_token_s=read_s,
        )

    def error(candidate: Speed) -> float:
        simulated = [_rollout_s(candidate, batch, servers=1, concurrency=len(batch)) for batch, _ in batches]
        return sum(abs(np.log(mine / taken)) for mine, (_, taken) in zip(simulated, batches, strict=True))

    return min((speed(exclusive, further) for exclusive, further in product(parts, parts)), key=error)


def _play(
    policy: Any, scenarios: Sequence[Scenario], *, group: int, concurrency: int, delay_s: float = 0.0
) -> list[Trajectory]:
    desk = SlowDesk(delay_s)
    return collect(
        scenarios,
        policy,
        desk,
        Renderer(policy.tokenizer, tools=desk.tools),
        RolloutSettings(max_new_tokens=32, concurrency=concurrency),
        group_size=group,
        temperature=1.0,
        run_seed=7,
        iteration=0,
    )


def calibrate(policy: ServersPolicy) -> tuple[Speed, list[tuple[int, float, float]]]:
    """Speed of the server of a policy, and (episodes at once, measured, simulated seconds) of each batch."""
    turns: list[_Timed] = []
    scenarios = desk_scenarios(PLAYED)
    _play(policy, scenarios, group=2, concurrency=1)  # loads the weights
    _play(_TimedPolicy(policy, turns), scenarios, group=2, concurrency=1)
    played: dict[int, list[Trajectory]] = {}

    def batch(group: int) -> float:
        return seconds(lambda: played.update({group: _play(policy, scenarios, group=group, concurrency=SLOTS)}))

    taken = in_turn({str(group): partial(batch, group) for group in BATCHES}, repeats=REPEATS)
    batches = [([_episode(t, 0.0) for t in played[group]], taken[str(group)]) for group in BATCHES]
    speed = fit(turns, batches)
    simulated = [_rollout_s(speed, episodes, servers=1, concurrency=SLOTS) for episodes, _ in batches]
    return speed, [(len(b), s, mine) for (b, s), mine in zip(batches, simulated, strict=True)]


def load_s(policies: Sequence[ServersPolicy]) -> float:
    """Median seconds that a rollout takes longer if the servers do not have the weights yet."""
    scenarios = desk_scenarios(PLAYED)

    def play(policy: ServersPolicy) -> float:
        return seconds(lambda: _play(policy, scenarios, group=2, concurrency=SLOTS))

    return max(0.0, median(play(policy) - play(policy) for policy in policies))


def _draws(index: int) -> Sequence[Scenario]:
    return desk_scenarios(SCENARIOS * UPDATES)[index * SCENARIOS : (index + 1) * SCENARIOS]


def in_stages(policies: Sequence[ServersPolicy], episodes: list[Trajectory]) -> list[float]:
    """Times of the ends of updates. Adds the trajectories to `episodes`."""
    ends = []
    for index, policy in enumerate(policies):
        episodes += _play(policy, _draws(index), group=GROUP, concurrency=SLOTS, delay_s=DELAY_S)
        time.sleep(UPDATE_S)
        ends.append(time.perf_counter())
    return ends


def in_windows(policies: Sequence[ServersPolicy], max_staleness: int) -> list[float]:
    """Times of the ends of updates with a continuous rollout."""
    by_id = {scenario.id: scenario for index in range(UPDATES) for scenario in _draws(index)}
    queue = GroupQueue(
        lambda index: [scenario.id for scenario in _draws(index)],
        group_size=GROUP,
        max_staleness=max_staleness,
        windows=UPDATES,
        error_budget=0.0,
        policy_hash=policies[0].hash,
    )
    desk = SlowDesk(DELAY_S)
    rollout = ContinuousRollout(
        queue,
        policies[0],
        desk,
        Renderer(policies[0].tokenizer, tools=desk.tools),
        RolloutSettings(max_new_tokens=32, concurrency=SLOTS, mode="continuous", max_staleness=max_staleness),
        scenarios=lambda ids: [by_id[name] for name in ids],
        run_seed=7,
    )
    live, ends = LiveRollout(rollout, nullcontext()), []
    try:
        for index in range(UPDATES):
            if index:
                live.publish(policies[index])
            live.take()
            time.sleep(UPDATE_S)
            ends.append(time.perf_counter())
    finally:
        live.close()
    return ends


def _between(ends: Sequence[float]) -> float:
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def _policies(store: ArtifactStore, urls: Sequence[str], count: int) -> list[ServersPolicy]:
    """Versions of the shipped model whose weights differ a little."""
    clerk, versions = desk_policy(), []
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        checkpoint = put_folder(store, "checkpoint", partial(save_base, clerk))
        versions.append(make_servers_policy(store, checkpoint, RolloutSettings(backend="servers", servers=tuple(urls))))
        model = copy.deepcopy(clerk.model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1e-5 * torch.randn(parameter.shape, generator=generator))
        clerk = TransformersPolicy(model, clerk.tokenizer)
    return versions


def section() -> str:
    """Measurement of two servers, with the prediction of the simulator."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        home = folder / "home"
        home.mkdir()
        os.environ[KEY] = KeyStore(home / "keys.json").create("trainer", ("rollout",))
        options, one_core = ("--set", "rollouts={}"), {"OMP_NUM_THREADS": "1"}
        with (
            ours(str(MODEL), home, options=options, environment=one_core) as left,
            ours(str(MODEL), home, options=options, environment=one_core) as right,
        ):
            urls = [f"http://127.0.0.1:{side.port}" for side in (left, right)]
            store = ArtifactStore(str(folder / "store"))
            speed, batches = calibrate(_policies(store, urls[:1], 1)[0])
            policies = _policies(store, urls, UPDATES)
            loading_s = load_s(policies[1:])
            episodes: list[Trajectory] = []
            measured = {None: _between(in_stages(policies, episodes))}
            for most in STALENESS:
                measured[most] = _between(in_windows(policies, most))
    plan = Plan(
        mode="stages",
        servers=2,
        speed=speed,
        groups=SCENARIOS,
        group_size=GROUP,
        concurrency=SLOTS,
        update_s=UPDATE_S,
        episode_update_s=0.0,
        load_s=loading_s,
        updates=UPDATES,
    )
    work = [_episode(trajectory, DELAY_S) for trajectory in episodes]
    rows = []
    for staleness, took in measured.items():
        mode: Mode = "stages" if staleness is None else "continuous"
        simulation = Simulation(replace(plan, mode=mode, max_staleness=staleness or 0), cycle(work))
        predicted = simulation.run().update_s
        name = mode if staleness is None else f"{mode}, max_staleness {staleness}"
        rows.append((name, f"{took:.1f}", f"{predicted:.1f}", f"{predicted / took:.2f}"))
    fitted = "; ".join(f"{count} episodes at once {took:.2f} s, fitted {mine:.2f} s" for count, took, mine in batches)
    table = Table(head=("mode", "measured s", "predicted s", "predicted ÷ measured"), rows=tuple(rows)).markdown()
    calls = fmean(sum(turn.wait_s for turn in episode) / DELAY_S for episode in work)
    spent = (
        f"a step takes {speed.step_s * 1e3:.1f} ms and {speed.further_s * 1e3:.2f} ms more for each further turn. A "
        f"turn keeps the server for {speed.request_s * 1e3:.1f} ms and {speed.prompt_token_s * 1e6:.0f} µs for each "
        f"token that it reads, and takes {speed.latency_s * 1e3:.1f} ms elsewhere ({fitted})."
    )
    text = (
        "Written by `python -m tests.benchmarks.simulation`. Two `grpo serve` on a machine of two cores, which had "
        "other work as well, generate episodes of the support desk with the shipped model: "
        f"{SCENARIOS} scenarios × {GROUP} episodes for each of {UPDATES} updates. Each tool call takes {DELAY_S:g} s, "
        f"with {calls:.1f} calls an episode. An update is a wait of {UPDATE_S:g} s, which takes no time from the "
        "servers, and gives weights that differ a little. The speed of the simulated servers is fitted to episodes "
        f"without waits on one server: {spent} Loading a version takes {loading_s:.1f} s (median). Everything else is "
        "predicted. The table has the mean seconds from one update to the next."
    )
    return f"{fill(text, 120, break_long_words=False, break_on_hyphens=False)}\n\n{table}"


def main() -> None:
    """Measure, simulate and write."""
    settings.apply()
    text = section()
    if "--show" in sys.argv[1:]:
        sys.stdout.write(f"{text}\n")
    else:
        keep(text, INTERNALS / "simulations.md", SECTION)


if __name__ == "__main__":
    main()
