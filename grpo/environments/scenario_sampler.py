"""Sampler of the scenarios that an environment is created with, for use in a notebook."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

from pydantic import ValidationError

from grpo.errors import DataError
from grpo.scenario import Scenario

ScenarioLike = Scenario | Mapping[str, Any]


class ScenarioSampler:
    """Sampler without replacement, in file order or reshuffled each epoch.

    If a seed is given, the sample depends only on the seed, so that the same seed gives the same scenario.
    """

    def __init__(self, scenarios: Iterable[ScenarioLike], *, shuffled: bool) -> None:
        self.scenarios = tuple(to_scenario(scenario, number) for number, scenario in enumerate(scenarios))
        self._shuffled = shuffled
        self._positions = count()
        ids = [scenario.id for scenario in self.scenarios]
        duplicate = next((id for id in ids if ids.count(id) > 1), None)
        if duplicate is not None:
            raise DataError(
                f"scenario id {duplicate!r} is given twice. Give each its own, because groups are formed by id"
            )

    def sample(self, seed: int | None) -> Scenario:
        """Sample the next scenario, or the seed's scenario. Raises `DataError` if there are none."""
        if not self.scenarios:
            raise DataError(
                "reset got no scenario, and the environment has none. Pass a scenario to reset, or scenarios to the "
                "environment"
            )
        size = len(self.scenarios)
        position = next(self._positions) if seed is None else seed
        if not self._shuffled:
            return self.scenarios[position % size]
        if seed is not None:
            return random.Random(seed).choice(self.scenarios)
        epoch, index = divmod(position, size)
        order = list(self.scenarios)
        random.Random(epoch).shuffle(order)
        return order[index]


def to_scenario(given: ScenarioLike, number: int) -> Scenario:
    """Validate a scenario given as such or as a dict of its fields.

    The default id is a hash of the content. If only topic and context are given, the user opens with both:

        {"topic": "refund", "context": "Order delayed"}  →  user: "refund: Order delayed"
    """
    if isinstance(given, Scenario):
        return given
    record = dict(given)
    if "id" not in record:
        record["id"] = hashlib.sha256(json.dumps(record, sort_keys=True, default=str).encode()).hexdigest()[:16]
    if not record.get("user_responses") and not record.get("goal") and record.get("context"):
        record["user_responses"] = (": ".join(filter(None, (record.get("topic"), record["context"]))),)
    try:
        return Scenario.model_validate(record)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"])) or "user"
        raise DataError(f"scenario {number} ({record['id']}): {place}: {problem['msg']}") from error
