from __future__ import annotations

import functools
import re
from collections import defaultdict

import pytest

from grpo.agents import strategies
from grpo.renderers.encoding import any_of
from grpo.rewards.learned import hazards
from tests.regular_expressions import Site, patterns_at, sites, slow_unit

BOUNDED = {
    "grpo.evaluation.plots:svg": "drawings that this package makes",
    "grpo.notebook.config:_billions": "the name of the model in the owner's config",
    "grpo.registry.serving:tool_parser": "a form of one call, which the renderer writes",
    "grpo.renderers.placeholders:Slot.message": "the name of a slot, which this package writes",
    "grpo.renderers.tool_formats:Marks.bare": "marks of a format",
    "grpo.renderers.tool_formats:ToolFormat.__init__": "a reply, of max_new_tokens at most",
    "grpo.renderers.tool_formats:TaggedCalls.__init__": "a reply, of max_new_tokens at most",
    "grpo.renderers.tool_formats:_core": "marks of a format",
    "grpo.renderers.tool_formats:pattern": "a reply, of max_new_tokens at most",
    "grpo.rewards.reward:RewardFunction.__init_subclass__": "the name of a class",
    "grpo.rewards.text.answers:_DENIED_BEFORE": "the 40 characters before a number",
    "grpo.rewards.text.answers:_DENIED_AFTER": "the 30 characters after a number",
    "grpo.rewards.text.answers:_value": "the digits of one number, a single character is replaced",
    "grpo.scenarios.pii:_NUMBERED": "the 30 characters before a number",
    "grpo.serving.routes.page:_digest": "the chat page of this package",
}
"""Patterns that meet texts of a known size only, or texts of the package and its owner."""
METHODS = {
    **dict.fromkeys(
        (
            "grpo.config.base:_HOME_FILE",
            "grpo.environments.users.simulated_user:_FACT",
            "grpo.environments.users.simulated_user:_PART",
            "grpo.policy.weights.hub:_ADDRESS",
            "grpo.policy.weights.hub:_SHARD",
            "grpo.registry.provenance:_HELDOUT",
            "grpo.storage.documents:_LISTED",
            "grpo.store_move:_ARTIFACT",
            "grpo.renderers.encoding:_MARKED",
            "grpo.scenarios.guess:_HUB_ID",
            "grpo.scenarios.message_columns:_ANSWER",
            "grpo.scenarios.message_columns:_GROUP",
            "grpo.scenarios.message_columns:_QUESTION",
            "grpo.scenarios.message_columns:_TRUE_IS_AGENT",
            "grpo.scenarios.message_columns:_TRUE_IS_USER",
            "grpo.scenarios.readers.messages.written_calls:_FORM",
            "grpo_local.login:_USABLE",
            "grpo_local.server_answers:_VERSION",
            "grpo_local.prefect_server.description:_DESCRIPTION",
        ),
        "fullmatch",
    ),
    "grpo.renderers.channels:_HEADER": "match",
    "grpo.renderers.tool_formats:_END": "match",
    "grpo.renderers.tool_formats:_FENCE": "match",
    "grpo.renderers.tool_formats:_FENCE_END": "match",
    "grpo.scenarios.readers.files.csv_rows:_TO_CLOSING_QUOTE": "match",
    "grpo.scenarios.readers.messages.transcripts:_NAMES": "match",
    "grpo.scenarios.readers.messages.written_calls:_CALL": "match",
}
"""Patterns that are compared with a whole text or with its beginning; others are searched."""
MADE = {
    "grpo.agents.strategies:_cues": lambda: [
        stage.cues for strategy in strategies.STRATEGIES.values() for stage in strategy.stages if stage.cues is not None
    ],
    "grpo.renderers.encoding:any_of": lambda: [any_of(["<|im_start|>", "<|im_end|>", "</s>"])],
    "grpo.rewards.learned.hazards:Hazard.pattern": lambda: [hazard.pattern for hazard in hazards._HAZARDS],
    "grpo.rewards.text.features:_any": lambda: [],
}
"""Patterns that a function makes; those of `_any` are in the list by their names."""


@functools.cache
def _listed() -> dict[str, list[str]]:
    """Places with a pattern, and the patterns that are written there as plain texts."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for site, text in sites():
        places[str(site)] += [text] if text is not None else []
    return dict(places)


def _compiled(place: str) -> list[re.Pattern[str]]:
    module, _, name = place.partition(":")
    if place in MADE:
        return MADE[place]()
    if "." not in name and name.lstrip("_").isupper():
        return patterns_at(Site(module=module, name=name))
    return [re.compile(text) for text in _listed()[place]]


def test_every_regular_expression_is_in_the_list():
    """Each can be tried, or is bounded by name; what is bounded or made exists."""
    known = _listed().keys()
    assert sorted(place for place in known - BOUNDED.keys() - MADE.keys() if not _compiled(place)) == []
    assert sorted((BOUNDED.keys() | METHODS.keys() | MADE.keys()) - known) == []


def test_the_time_of_a_search_grows_with_the_length_of_its_text():
    """Sixteen times a repeated unit takes less than 64 times as long: CPU time of one thread."""
    slow = {
        place: unit
        for place in sorted(_listed().keys() - BOUNDED.keys())
        for pattern in _compiled(place)
        if isinstance(pattern.pattern, str)
        and (unit := slow_unit(pattern, method=METHODS.get(place, "finditer"))) is not None
    }
    assert slow == {}


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", id="square"),  # a run of letters is read from each of them
        pytest.param(r"\b(?:stab(?:bing)?|kill)\b(?:[\s,'-]+[\w'-]+){0,5}?[\s,'-]+(?:him|her)\b", id="sixth power"),
        pytest.param(r"(?:\w+-?)+!", id="exponential"),
        pytest.param(r"<(\w+)([^<>]*)>", id="square after a beginning"),
    ],
)
def test_a_slow_pattern_is_noticed(bad: str):
    """Each is noticed with a text that is searched in moments, also where a longer one would never end."""
    assert slow_unit(re.compile(bad)) is not None


def test_a_slow_comparison_with_the_beginning_of_a_text_is_noticed():
    """Only behind `user:` there are two ways to read line ends."""
    assert slow_unit(re.compile(r"user:.*?(?:\n\s*)agent:", re.DOTALL), method="match") is not None
