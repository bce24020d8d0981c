"""Checks of scenarios, of the user's objects, and of the data of SFT and DPO."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from grpo.config.dpo import DPOSettings
from grpo.config.scenarios import PythonSource, Source
from grpo.config.sft import SFTSettings
from grpo.errors import GRPOError
from grpo.identity.code import external_digests
from grpo.policy.renderer import check_renderer
from grpo.preflight.facts import Facts
from grpo.user_objects import bind

_RENDERED = 200
"""Demonstrations or pairs that are rendered, in addition to the longest one."""


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
    """Read demonstrations and preference pairs, and render the first ones and the longest one as their stage does."""
    renders: list[Callable[[], None]] = []
    if facts.given.sft is not None:
        renders.append(partial(_render_demonstrations, facts, facts.given.sft))
    if facts.given.dpo is not None:
        renders.append(partial(_render_pairs, facts, facts.given.dpo))
    for render in renders:
        try:
            render()
        except GRPOError as error:
            yield error


def _render_demonstrations(facts: Facts, settings: SFTSettings) -> None:
    from grpo.learner.offline.demonstrations import demonstration_tokens, read_demonstrations, source_place

    conversations = read_demonstrations(settings.demonstrations)
    for index in _rendered([sum(len(message.content) for message in messages) for messages in conversations]):
        demonstration_tokens(
            conversations[index],
            agent=facts.agent(),
            environment=facts.environment(),
            renderer=facts.renderer(),
            max_context=facts.model_context(),
            place=f"demonstration {index + 1} of {source_place(settings.demonstrations)}",
        )


def _render_pairs(facts: Facts, settings: DPOSettings) -> None:
    from grpo.learner.offline.preferences import PairRenderers, pair_tokens, read_pairs

    pairs = read_pairs(settings.pairs)
    renderers = PairRenderers(facts.agent(), facts.environment(), facts.tokenizer(), facts.given.policy.renderer)
    sizes = [sum(len(m.content) for m in (*pair.prompt, pair.chosen, pair.rejected)) for pair in pairs]
    for index in _rendered(sizes):
        pair_tokens(*renderers.prepared(pairs[index]), max_context=facts.model_context())


def _rendered(sizes: Sequence[int]) -> list[int]:
    """Indices of the first items and of the longest one."""
    longest = max(range(len(sizes)), key=sizes.__getitem__)
    return sorted({*range(min(len(sizes), _RENDERED)), longest})
