"""Simulated servers and the episodes on them, see `tests.benchmarks.simulator`."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTurn:
    """Work of one turn of an episode."""

    prompt: int
    """Tokens that follow the last turn: the answer of a tool or a user."""
    tokens: int
    """Tokens that the policy generates."""
    wait_s: float
    """Seconds after the turn in which a tool or a user answers."""


Episode = tuple[SimulatedTurn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Speed of one server."""

    slots: int
    """Turns at once."""
    step_s: float
    """Seconds of a step that generates one token of one turn."""
    further_s: float
    """Further seconds of a step for each further turn."""
    request_s: float
    """Seconds that the request of a turn takes from all turns of the server."""
    prompt_token_s: float
    """The same for each token of a prompt that has to be read."""
    latency_s: float = 0.0
    """Seconds of a turn outside of the batch, in which other turns go on: connections, and the caller's own work."""

    def step(self, turns: int) -> float:
        """Seconds of a step with this many turns."""
        return self.step_s + self.further_s * (turns - 1)


class Clock:
    """Events in the order of their times. Events of one time happen in the order in which they were planned."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._planned = 0

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Plan an event."""
        self._planned += 1
        heapq.heappush(self._events, (self.now + seconds, self._planned, event))

    def run(self, is_over: Callable[[], bool]) -> None:
        """Let events happen until `is_over`. Raises `RuntimeError` if none is left before."""
        while not is_over():
            if not self._events:
                raise RuntimeError(f"the simulation stands still at {self.now:.3g} s")
            self.now, _, event = heapq.heappop(self._events)
            event()


@dataclass(slots=True)
class _Turn:
    reads: int
    tokens: int
    done: Callable[[], None]
    end: float = 0.0
    """Steps of the server at which the last token is there."""


class Server:
    """One server: a batch of turns that all get one token in each step."""

    def __init__(self, clock: Clock, speed: Speed) -> None:
        self.busy_s, self.turn_s = 0.0, 0.0
        """Seconds with a turn, and the sum over turns of their seconds in the batch."""
        self._clock, self._speed = clock, speed
        self._steps = 0.0
        self._until = 0.0
        """Time up to which `_steps` is counted. It is later than now while a prompt is read."""
        self._seen = 0.0
        self._batch: list[tuple[float, int, _Turn]] = []
        self._line: deque[_Turn] = deque()
        self._changes = 0

    def ask(self, reads: int, tokens: int, done: Callable[[], None]) -> _Turn:
        """Begin a turn that has to read this many tokens. `done` is called at its end."""
        turn = _Turn(reads, tokens, done)
        self._count()
        self._line.append(turn)
        self._admit()
        return turn

    def cancel(self, turn: _Turn) -> None:
        """Take a turn out."""
        self._count()
        self._batch = [entry for entry in self._batch if entry[2] is not turn]
        heapq.heapify(self._batch)
        self._line = deque(waiting for waiting in self._line if waiting is not turn)
        self._admit()

    def settle(self) -> None:
        """Count busy seconds up to now."""
        self._count()

    def _count(self) -> None:
        now, turns = self._clock.now, len(self._batch)
        if turns:
            self.busy_s += now - self._seen
            self.turn_s += turns * (now - self._seen)
            if now > self._until:
                self._steps += (now - self._until) / self._speed.step(turns)
        self._seen, self._until = now, max(now, self._until)

    def _admit(self) -> None:
        while self._line and len(self._batch) < self._speed.slots:
            turn = self._line.popleft()
            self._until += self._speed.request_s + turn.reads * self._speed.prompt_token_s
            turn.end = self._steps + turn.tokens
            self._changes += 1
            heapq.heappush(self._batch, (turn.end, self._changes, turn))
        self._changes += 1
        if self._batch:
            change, left = self._changes, self._batch[0][0] - self._steps
            end = self._until + max(0.0, left) * self._speed.step(len(self._batch))
            self._clock.after(end - self._clock.now, lambda: self._finish(change))

    def _finish(self, change: int) -> None:
        if change != self._changes:  # turns have come or gone since this was planned
            return
        self._count()
        end, _, turn = heapq.heappop(self._batch)
        self._steps = end
        self._admit()
        turn.done()


@dataclass(slots=True, eq=False)
class Run:
    """An episode in progress."""

    episode: Episode
    ended: Callable[[Run], None]
    version: int | None = None
    """Version of its first token, or None if it waits for its beginning."""
    read_by: int | None = None
    """Version that has read the conversation."""
    server: int = 0
    turn: int = 0
    length: int = 0
    asked: _Turn | None = None
    is_dropped: bool = False


class Rollout:
    """Episodes on servers. Each one stays on the server that had the fewest when it began."""

    def __init__(self, clock: Clock, speed: Speed, *, servers: int, concurrency: int) -> None:
        self.version = 0
        """Version of the weights that turns begin with."""
        self.servers = [Server(clock, speed) for _ in range(servers)]
        self._clock, self._latency_s = clock, speed.latency_s
        self._free = concurrency
        self._line: deque[Run] = deque()
        self._conversations = [0] * servers
        self._emptiest = [(0, index) for index in range(servers)]

    def begin(self, episode: Episode, ended: Callable[[Run], None]) -> Run:
        """Begin an episode, or let it wait for its place. `ended` is called when it is complete."""
        run = Run(episode, ended)
        self._line.append(run)
        self._start()
        return run

    def drop(self, run: Run) -> None:
        """End an episode before it is complete."""
        run.is_dropped = True
        if run.version is None:
            self._line.remove(run)
            return
        if run.asked is not None:
            self.servers[run.server].cancel(run.asked)
        self._leave(run)

    def _start(self) -> None:
        while self._line and self._free:
            run = self._line.popleft()
            self._free -= 1
            while self._emptiest[0][0] != self._conversations[self._emptiest[0][1]]:
                heapq.heappop(self._emptiest)
            run.server, run.version = self._emptiest[0][1], self.version
            self._move(run.server, 1)
            self._ask(run)

    def _ask(self, run: Run) -> None:
        if run.is_dropped:
            return
        turn = run.episode[run.turn]
        reads = turn.prompt + (0 if run.read_by == self.version else run.length)
        run.read_by, run.length = self.version, run.length + turn.prompt + turn.tokens
        run.asked = self.servers[run.server].ask(reads, turn.tokens, lambda: self._answered(run))

    def _answered(self, run: Run) -> None:
        wait_s = run.episode[run.turn].wait_s + self._latency_s
        run.turn, run.asked = run.turn + 1, None
        self._clock.after(wait_s, lambda: self._ask(run) if run.turn < len(run.episode) else self._end(run))

    def _end(self, run: Run) -> None:
        if not run.is_dropped:
            self._leave(run)
            run.ended(run)

    def _leave(self, run: Run) -> None:
        self._free += 1
        self._move(run.server, -1)
        self._start()

    def _move(self, server: int, change: int) -> None:
        self._conversations[server] += change
        heapq.heappush(self._emptiest, (self._conversations[server], server))
