"""Copies of scenarios and of other values for code of the user, so that a change in one of them changes no other.

Each episode and each reward get their own copies. Deep copies of a large world are slow: `copy.deepcopy` of 1.4 MB of
JSON took 44 ms, and reading its pickled bytes 5 to 11 ms. So a value is pickled once, and each copy is read from these
bytes. What cannot change, such as the texts of a scenario, is shared by the copies.

The copies are made in the thread of the event loop. Another thread would not make it free, because pickle holds
Python's lock for the whole value.
"""

from __future__ import annotations

import copy
import pickle
from typing import Generic, TypeVar

from grpo.scenario import Scenario
from grpo.user_failures import is_from_outside

T = TypeVar("T")


class Copies(Generic[T]):
    """Deep copies of a value as it is when this object is made.

    A value that pickle cannot copy, e.g. one that has a lambda, is copied with `copy.deepcopy`.
    """

    def __init__(self, value: T) -> None:
        self._pickled = _pickled(value)
        self._value = value if self._pickled is not None else copy.deepcopy(value)

    def copy(self) -> T:
        """A copy that shares no dict or list with the value and with other copies."""
        if self._pickled is not None:
            try:
                value: T = pickle.loads(self._pickled)  # noqa: S301 (pickled by this object)
                return value
            except BaseException as error:  # an object of the user's own may raise anything
                if is_from_outside(error):
                    raise
                self._pickled = None
        return copy.deepcopy(self._value)


class ScenarioCopies:
    """Copies of a scenario as it is when this object is made. They share what cannot change."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        expected = scenario.expected
        self._parts = Copies((scenario.tools, scenario.world, expected.calls, expected.state))

    def copy(self) -> Scenario:
        """A copy that shares no dict or list with the scenario and with other copies."""
        scenario, expected = copy.copy(self.scenario), copy.copy(self.scenario.expected)
        tools, world, calls, state = self._parts.copy()
        expected.__dict__.update(calls=calls, state=state)  # as model_copy does, but which fields are set stays
        scenario.__dict__.update(tools=tools, world=world, expected=expected)
        return scenario


def _pickled(value: object) -> bytes | None:
    """The pickled value, or None if pickle cannot write it."""
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except BaseException as error:  # an object of the user's own may raise anything
        if is_from_outside(error):
            raise
        return None
