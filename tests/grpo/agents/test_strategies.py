from __future__ import annotations

import pytest

from grpo.agents.strategies import STRATEGIES, STRATEGY_BY_TASK, current_stage, strategy_prompt
from grpo.errors import ConfigError
from grpo.messages import Message
from tests.grpo.agents.fixtures import Echo, make_agent, run


def _user(*texts: str) -> list[Message]:
    return [Message(role="user", content=text) for text in texts]


def test_each_strategy_has_a_prompt_of_its_own_that_names_it():
    """Four prompts for the same conversation."""
    prompts = {name: strategy_prompt(name, _user("hi"), {}) for name in STRATEGIES}
    assert set(prompts) == {"customer_service", "technical_support", "educational", "sales"}
    assert len(set(prompts.values())) == 4
    assert all(prompt.startswith(f"Strategy {name}") for name, prompt in prompts.items())


@pytest.mark.parametrize("name", ["customer_service", "technical_support", "educational", "sales"])
def test_the_policy_reads_the_strategy_of_its_config_or_of_the_conversation(name: str):
    """In the system prompt; the context's strategy takes precedence."""
    agent = make_agent(Echo(), strategy=name)
    run(agent.generate_response("hi"))
    run(agent.generate_response("hi", {"strategy": "sales"}))
    first, second = (prompt[0].content for prompt in agent.policy.prompts)  # type: ignore[union-attr]
    assert first == strategy_prompt(name, _user("hi"), {})
    assert second.startswith("Strategy sales")


def test_a_sale_goes_through_its_stages():
    """A scripted dialogue: each stage starts at its cue, and never goes back."""
    sales = STRATEGIES["sales"]
    dialogue = [
        ("Hello there.", "awareness"),
        ("I am looking for a desk lamp.", "interest"),
        ("How does it work?", "interest"),
        ("How much is it?", "consideration"),
        ("Tell me more about the shade.", "consideration"),
        ("Good, I'll take it.", "decision"),
        ("What is the price again?", "decision"),
    ]
    texts: list[str] = []
    for text, expected in dialogue:
        texts.append(text)
        stage = current_stage(sales, _user(*texts))
        assert stage is not None
        assert stage.name == expected
        assert f"stage {expected}. " in strategy_prompt("sales", _user(*texts), {})
        assert stage.guidance in strategy_prompt("sales", _user(*texts), {})


def test_assistant_messages_do_not_change_the_stage():
    """Naming a price is not asking for one."""
    chat = [*_user("hi"), Message(role="assistant", content="How much would you like to spend?")]
    stage = current_stage(STRATEGIES["sales"], chat)
    assert stage is not None
    assert stage.name == "awareness"


def test_a_stage_may_be_skipped():
    """A user who comes to buy is not asked for needs."""
    stage = current_stage(STRATEGIES["sales"], _user("I want to buy the green one."))
    assert stage is not None
    assert stage.name == "decision"


def test_the_level_in_the_context_selects_the_prompt():
    """Three levels, three prompts; an unknown level is refused."""
    prompts = {level: strategy_prompt("educational", [], {"level": level}) for level in ("beginner", "expert")}
    assert "everyday words" in prompts["beginner"]
    assert "terms of the field" in prompts["expert"]
    assert strategy_prompt("educational", [], {}) == strategy_prompt("educational", [], {"level": "intermediate"})
    with pytest.raises(ConfigError, match=r"level 'genius'.*beginner, intermediate, expert"):
        strategy_prompt("educational", [], {"level": "genius"})


def test_an_unknown_strategy_is_refused():
    """The message lists the known ones."""
    with pytest.raises(ConfigError, match=r"'poker' is unknown\. Use one of customer_service"):
        strategy_prompt("poker", [], {})


def test_each_task_has_a_strategy():
    """Four tasks, and each strategy belongs to one."""
    tasks = {"customer_support", "tech_help", "sales_chat", "tutoring"}
    assert set(STRATEGY_BY_TASK) == tasks
    assert set(STRATEGY_BY_TASK.values()) == set(STRATEGIES)
    assert STRATEGY_BY_TASK["tutoring"] == "educational"
