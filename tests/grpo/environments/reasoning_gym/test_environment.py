"""Questions of reasoning-gym, compared with the package itself."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpo.config.environments import ReasoningGymSettings
from grpo.config.sft import GeneratedDemonstrations
from grpo.environments.catalog import make_environment
from grpo.environments.environment import Environment, EnvironmentState
from grpo.errors import DataError
from grpo.learner.offline.demonstrations import read_demonstrations
from grpo.messages import Message
from grpo.scenario import Scenario

reasoning_gym = pytest.importorskip("reasoning_gym", reason="the extra reasoning is not installed")
from grpo.environments.reasoning_gym.environment import (  # noqa: E402
    TRY_AGAIN,
    ReasoningGymEnvironment,
    _make_entry,
    make_entry,
    make_task,
)
from grpo.environments.reasoning_gym.scenario_generator import ReasoningTask, reasoning_scenarios  # noqa: E402
from grpo.environments.reasoning_gym.verifiers import constant_answer, evaluating_call  # noqa: E402

TASKS = (
    "chain_sum",
    "spell_backward",
    "letter_counting",
    "simple_equations",
    "ransom_note",
    "fraction_simplification",
    "gcd",
)


def scenarios(*tasks: str, **numbers: int) -> list[Scenario]:
    parts = [ReasoningTask.model_validate({"task": task, **numbers}) for task in tasks]
    return [Scenario.model_validate(record) for record in reasoning_scenarios(parts)]


async def episode(environment: Environment, scenario: Scenario, answers: Sequence[str]) -> EnvironmentState:
    state = await environment.reset(scenario)
    for answer in answers:
        if not state.done:
            state = (await environment.step(state, Message(role="assistant", content=answer))).state
    return state


def play(environment: Environment, scenario: Scenario, *answers: str) -> EnvironmentState:
    return asyncio.run(episode(environment, scenario, answers))


@pytest.mark.parametrize("task", TASKS)
def test_questions_and_scores_are_those_of_the_package(task: str):
    """Its own answer is right; the number of another question, a sentence around the answer and noise score alike."""
    environment = make_environment(ReasoningGymSettings(kind="reasoning_gym"))
    (scenario,) = scenarios(task, train=1)
    library = reasoning_gym.create_dataset(task, seed=0, size=12_000)
    entry = library[scenario.world["index"]]
    for answer in (entry["answer"], "17", f"It is {entry['answer']}", "?"):
        state = play(environment, scenario, answer)
        outcome = environment.verify(state)
        assert outcome is not None
        assert state.history[0].content == entry["question"]
        assert outcome.reward == library.score_answer(answer, entry)
        assert outcome.success == (outcome.reward == 1)
        assert state.done
    assert environment.verify(play(environment, scenario, entry["answer"])).success


def test_the_answer_between_the_tags_counts():
    """Of two the last one, as in the package; without tags the whole reply is the answer."""
    (scenario,) = scenarios("gcd", train=1)
    right = scenario.expected.responses[0]
    environment = ReasoningGymEnvironment()
    reply = f"<answer>0</answer> No. <answer> {right} </answer> is it."
    assert environment.verify(play(environment, scenario, reply)).reward == 1
    assert environment.verify(play(environment, scenario, f" {right}\n")).reward == 1


def test_a_wrong_answer_can_be_mended_until_the_last_turn():
    """With three turns: the second answer is right, or the third is the last."""
    environment = make_environment(ReasoningGymSettings(kind="reasoning_gym", max_turns=3))
    (scenario,) = scenarios("gcd", train=1)
    right = scenario.expected.responses[0]
    mended = play(environment, scenario, "no", right, "no")
    assert [m.content for m in mended.history[1:]] == ["no", TRY_AGAIN, right]
    assert environment.verify(mended).success
    wrong = play(environment, scenario, "no", "no", "no")
    assert (wrong.done, wrong.turn_count, environment.verify(wrong).reward) == (True, 3, 0.0)


def test_an_answer_that_a_verifier_cannot_read_scores_nothing():
    """The verifier of prime factors raises ValueError for a word; the outcome says so."""
    environment = ReasoningGymEnvironment()
    (scenario,) = scenarios("prime_factorization", train=1)
    outcome = environment.verify(play(environment, scenario, "two"))
    assert (outcome.reward, outcome.success) == (0.0, False)
    assert outcome.state["problem"].startswith("ValueError: ")


def test_episodes_at_once_do_not_disturb_each_other():
    """Seven tasks, right answers and wrong ones, all at the same time."""
    environment = ReasoningGymEnvironment(max_turns=2)
    cases = scenarios(*TASKS, train=2)
    answers = [("?", case.expected.responses[0]) for case in cases]

    async def together() -> list[EnvironmentState]:
        return await asyncio.gather(
            *(episode(environment, case, given) for case, given in zip(cases, answers, strict=True))
        )

    assert [environment.verify(state).success for state in asyncio.run(together())] == [True] * len(cases)


def test_held_out_questions_are_none_of_those_trained_on():
    """Sums of two digits repeat themselves; 30 and 15 different ones, the same in each draw, a quarter is held out."""
    options = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    task = ReasoningTask(task="chain_sum", name="easy", options=options, train=30, heldout=15)
    records = list(reasoning_scenarios([task]))
    assert [record["split"] for record in records] == ["train"] * 30 + ["heldout"] * 15
    assert len({record["user_responses"][0] for record in records}) == 45
    assert {record["metadata"]["category"] for record in records} == {"easy"}
    assert records == list(reasoning_scenarios([task]))


def test_a_task_with_too_few_questions_is_an_error():
    """Two digits added or subtracted make fewer than 3,000 questions."""
    options = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    with pytest.raises(DataError, match=r"task chain_sum has only \d+ different questions for train, and 3000 are wan"):
        list(reasoning_scenarios([ReasoningTask(task="chain_sum", options=options, train=3000)]))


@pytest.mark.parametrize(
    ("world", "message"),
    [
        ({"task": "chain_sum"}, "world needs a task and an index"),
        ({"task": "chain_summ", "index": 0}, "task chain_summ of reasoning-gym cannot be made .* not registered"),
        ({"task": "gcd", "index": 0, "options": {"hard": 1}}, "task gcd of reasoning-gym cannot be made .*hard"),
        ({"task": "gcd", "index": 0, "options": {"seed": 3}}, "s asks another question than its world makes now"),
    ],
)
def test_a_scenario_that_makes_no_such_question_is_refused(world: dict[str, Any], message: str):
    """Before any episode, also where another release makes another question."""
    scenario = Scenario(id="s", user_responses=("What is 1 + 1?",), world=world)
    with pytest.raises(DataError, match=message):
        asyncio.run(ReasoningGymEnvironment().check(scenario))


def test_after_a_wrong_answer_the_state_is_the_same_whatever_the_answer_was():
    """The question, then the request to try again."""
    environment, case = ReasoningGymEnvironment(max_turns=3), scenarios("gcd", train=1)[0]
    ways = [[], ["-1"], ["-2"], ["-1", "The answer is <answer>-7</answer>."]]
    asked, *again = [environment.state_digest(asyncio.run(episode(environment, case, way))) for way in ways]
    assert {asked} != set(again)
    assert len(set(again)) == 1


def demonstrations(task: str) -> GeneratedDemonstrations:
    function = "grpo.environments.reasoning_gym.scenario_generator:reasoning_demonstrations"
    options = {"tasks": [{"task": task}], "each": 2}
    return GeneratedDemonstrations.model_validate({"kind": "python", "object": function, "options": options})


def test_demonstrations_are_the_package_s_own_answers():
    """From indices of their own, without questions whose digest begins with 0 to 3: these are held out."""
    library = reasoning_gym.create_dataset("gcd", seed=0, size=12_000)
    entries = (library[index] for index in range(8_000, 8_100))
    shown = [e for e in entries if hashlib.sha256(e["question"].encode()).hexdigest()[0] > "3"]
    conversations = read_demonstrations(demonstrations("gcd"))
    assert [tuple(m.content for m in c) for c in conversations] == [(e["question"], e["answer"]) for e in shown[:2]]


def test_a_task_without_answers_demonstrates_nothing():
    """Graph colouring has only a verifier."""
    with pytest.raises(DataError, match="task graph_color of reasoning-gym gives no answer, only a verifier"):
        read_demonstrations(demonstrations("graph_color"))


def test_verifiers_that_evaluate_an_answer_as_python_are_refused(tmp_path: Path):
    """Found in the sources of the package, each by hand: what a policy writes would run in the process."""
    from reasoning_gym.factory import DATASETS

    evaluating = {name for name, (task, _) in DATASETS.items() if evaluating_call(task)}
    assert evaluating == {
        *("binary_matrix", "bitwise_arithmetic", "countdown", "intermediate_integration", "n_queens", "number_sorting"),
        *("polynomial_multiplication", "puzzle24", "simple_integration", "spiral_matrix", "string_insertion"),
    }
    library = reasoning_gym.create_dataset("string_insertion", seed=0, size=1)
    written = tmp_path / "written"
    library.score_answer(f"[__import__('pathlib').Path({str(written)!r}).touch() or 'x']", library[0])
    assert written.exists(), "the package runs it"
    with pytest.raises(
        DataError, match="string_insertion of reasoning-gym is refused, because its verifier calls eval"
    ):
        make_task("string_insertion", {})
    with pytest.raises(DataError, match="composite of reasoning-gym is refused"):
        make_task("composite", {"datasets": [{"name": "gcd", "weight": 1, "config": {}}]})


@pytest.mark.parametrize(
    ("task", "constant"), [("coin_flip", "0"), ("complex_arithmetic", "nan"), ("game_of_life_halting", "nan")]
)
def test_a_task_that_scores_a_constant_as_right_is_refused(task: str, constant: str):
    """The package's verifier gives it 1 for most questions, and none has it as its answer."""
    library = reasoning_gym.create_dataset(task, seed=1, size=20)
    assert constant not in {library[index]["answer"] for index in range(20)}
    assert sum(library.score_answer(constant, library[index]) >= 1 for index in range(20)) >= 15
    with pytest.raises(
        DataError, match=f"task {task} of reasoning-gym is refused, because its verifier scores '{constant}'"
    ):
        make_task(task, {})


def test_a_task_with_one_frequent_answer_is_not_refused():
    """Three of four course schedules cannot be finished, so that `False` is often right because it is the answer."""
    assert [constant_answer(task) for task in ("course_schedule", "coin_flip", *TASKS)] == [None, "0", *[None] * 7]


@pytest.mark.parametrize("task", ["pool_matrix", "list_functions"])
def test_a_task_that_draws_from_the_process_asks_the_same_question_in_each_thread(task: str):
    """Eight threads at once make the questions of one thread, and the generators of the process go on as before."""
    options = {"seed": 0, "size": 12_000}
    alone = [make_entry(task, options, index)["question"] for index in range(24)]
    _make_entry.cache_clear()
    random.seed(5)
    np.random.seed(5)
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda index: make_entry(task, options, index)["question"], range(24)))
    drawn = random.random(), np.random.random()
    random.seed(5)
    np.random.seed(5)
    assert together == alone
    assert drawn == (random.random(), np.random.random())


def test_what_a_verifier_changes_in_an_entry_changes_no_other():
    """Each caller gets a copy."""
    options = {"seed": 0, "size": 12_000}
    make_entry("gcd", options, 3)["metadata"].clear()
    assert make_entry("gcd", options, 3)["metadata"]
