"""Checks of scenarios, of the user's objects, and of the data of SFT and DPO."""

from __future__ import annotations

from collections.abc import Iterator

from grpo.config.dpo import DPOSettings
from grpo.config.scenarios import PythonSource, Source
from grpo.config.sft import SFTSettings
from grpo.errors import GRPOError
from grpo.identity.code import external_digests
from grpo.policy.renderer import check_renderer
from grpo.preflight.facts import Facts
from grpo.user_objects import bind


def user_code(facts: Facts) -> Iterator[Exception]:
    """Find modules and declared files of the user's code."""
    external_digests([facts.given])
    yield from ()


def objects(facts: Facts) -> Iterator[Exception]:
    """Make the user's own sources, environment, agent and renderer."""
    yield from source_functions(facts.given.scenarios.sources)
    renderer = facts.given.policy.renderer
    for make in (facts.environment, facts.agent, lambda: None if renderer is None else check_renderer(renderer)):
        try:
            make()
        except GRPOError as error:
            yield error


def source_functions(sources: tuple[Source, ...]) -> Iterator[Exception]:
    """Import the functions of the user's own among these sources, and check their options."""
    for source in sources:
        if isinstance(source, PythonSource):
            try:
                bind(source.reference, source.options, given=0)
            except GRPOError as error:
                yield error


def scenarios(facts: Facts) -> Iterator[Exception]:
    """Read the first records of each source."""
    facts.sample()
    yield from ()


def playable(facts: Facts) -> Iterator[Exception]:
    """Let the environment check the scenarios of the sample."""
    facts.unplayable()
    yield from ()


def splits(facts: Facts) -> Iterator[Exception]:
    """Split the scenarios, if the sample is all of them."""
    facts.split()
    yield from ()


def tuning(facts: Facts) -> Iterator[Exception]:
    """Read demonstrations and preference pairs."""
    from grpo.learner.offline.demonstrations import read_demonstrations
    from grpo.learner.offline.preferences import read_pairs

    def read(settings: SFTSettings | DPOSettings) -> None:
        if isinstance(settings, SFTSettings):
            read_demonstrations(settings.demonstrations)
        else:
            read_pairs(settings.pairs)

    for settings in (facts.given.sft, facts.given.dpo):
        if settings is not None:
            try:
                read(settings)
            except GRPOError as error:
                yield error
