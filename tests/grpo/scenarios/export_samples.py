"""Exports of other products, each with the settings that read it, and its row of docs/logs.md if the page names it.

Each has the question "2 + 2?" and the right answer "4". `python -m tests.docs.tables` writes the page's table.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

USER = {"role": "user", "content": "2 + 2?"}
CHAT = [USER, {"role": "assistant", "content": "4"}]


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A file of an export: its name and content, and the settings without the path."""

    name: str
    file: str = "a.jsonl"
    content: Any
    settings: dict[str, Any]
    in_table: bool = True
    """The table of docs/logs.md has a row with this name."""
    note: str = ""
    """Words after the settings in the table."""


def _names(**names: str) -> dict[str, Any]:
    return {"kind": "input_output", "names": names}


EXPORTS = (
    Export(
        name="data sets and experiments of Braintrust",
        content={"id": "a", "input": "2 + 2?", "expected": "4"},
        settings={"kind": "input_output"},
    ),
    Export(
        name="data sets of Langfuse",
        file="a.json",
        content=[{"id": "a", "input": "2 + 2?", "expectedOutput": "4"}],
        settings=_names(expected="expectedOutput"),
    ),
    Export(
        name="data sets of LangSmith",
        content={"inputs": {"question": "2 + 2?"}, "outputs": {"answer": "4"}},
        settings=_names(input="inputs", output="outputs"),
    ),
    Export(
        name="data sets of Phoenix",
        content={"input": {"question": "2 + 2?"}, "output": {"answer": "4"}},
        settings={"kind": "input_output"},
    ),
    Export(
        name="samples of OpenAI's evals", content={"input": [USER], "ideal": "4"}, settings=_names(expected="ideal")
    ),
    Export(
        name="items of OpenAI's evals",
        content={"item": {"question": "2 + 2?", "correct_label": "4"}},
        settings=_names(input="item.question", expected="item.correct_label"),
        note=", by the names of your items",
    ),
    Export(
        name="samples of lm-eval",
        content={
            "doc": {"q": "2 + 2?"},
            "target": "4",
            "resps": [["5"]],
            "arguments": {"gen_args_0": {"arg_0": "2 + 2?", "arg_1": {}}},
        },
        settings=_names(input="arguments.gen_args_0.arg_0", expected="target"),
    ),
    Export(
        name="results of promptfoo",
        file="a.json",
        content={
            "results": {
                "prompts": [{"raw": "x"}],
                "results": [{"prompt": {"raw": json.dumps([USER])}, "response": {"output": "4"}}],
            },
            "config": {"tests": [{"vars": {}}]},
        },
        settings={"records": "results.results", **_names(input="prompt.raw", output="response.output")},
    ),
    Export(
        name="records of Argilla",
        content={"id": "a", "fields": {"instruction": "2 + 2?", "response": "4"}, "responses": {}},
        settings=_names(input="fields.instruction", output="fields.response"),
        note=", by the names of your fields",
    ),
    Export(
        name="tasks of Label Studio",
        file="a.json",
        content=[
            {
                "id": 1,
                "annotations": [],
                "data": {
                    "dialogue": [{"author": "user", "text": "2 + 2?"}, {"author": "agent", "text": "4"}],
                },
            }
        ],
        settings=_names(input="data.dialogue", role="author", content="text"),
    ),
    Export(
        name="Zeno",
        file="a.json",
        content=[{"data": [USER], "label": "4", "output": "5"}],
        settings=_names(input="data", expected="label"),
    ),
    Export(
        name="UltraChat",
        content={"id": "a", "data": ["2 + 2?", "4"]},
        settings=_names(input="data"),
        note=": in a list of texts, the user and the agent speak in turn",
    ),
    Export(
        name="OpenAssistant, trees",
        content={
            "message_tree_id": "m",
            "prompt": {
                "role": "prompter",
                "text": "2 + 2?",
                "replies": [
                    {"role": "assistant", "text": "5", "rank": 1, "replies": []},
                    {"role": "assistant", "text": "4", "rank": 0, "replies": []},
                ],
            },
        },
        settings={"kind": "openai_messages"},
        in_table=False,
    ),
    Export(
        name="W&B, table",
        file="a.table.json",
        content={"columns": ["prompt", "completion"], "data": [["2 + 2?", "4"]]},
        settings={"kind": "prompt_completion"},
        in_table=False,
    ),
    Export(
        name="SWE-agent",
        file="a.traj",
        content={"trajectory": [{"action": "ls"}], "history": CHAT, "info": {}},
        settings={"kind": "openai_messages", "column": "history"},
        in_table=False,
    ),
    Export(
        name="tau2-bench, results",
        file="a.json",
        content={"tasks": [{"id": "0"}], "simulations": [{"id": "s", "messages": CHAT}]},
        settings={"kind": "openai_messages", "records": "simulations"},
        in_table=False,
    ),
    Export(
        name="a wrapped list",
        file="a.json",
        content={"data": [{"messages": CHAT}]},
        settings={"kind": "openai_messages", "records": "data"},
        in_table=False,
    ),
    Export(
        name="no suffix",
        file="export",
        content={"messages": CHAT},
        settings={"kind": "openai_messages"},
        in_table=False,
    ),
    Export(
        name="capitals",
        file="A.JSON",
        content=[{"messages": CHAT}],
        settings={"kind": "openai_messages"},
        in_table=False,
    ),
)
_ADD = {"name": "add", "description": "Add.", "parameters": {"a": {"type": "int"}, "b": {"type": "int, optional"}}}
CALL_EXPORTS = (
    Export(
        name="xLAM (60k calls of functions)",
        file="a.json",
        content=[
            {
                "id": 0,
                "query": "2 + 2?",
                "answers": json.dumps([{"name": "add", "arguments": {"a": 2, "b": 2}}]),
                "tools": json.dumps([_ADD]),
            }
        ],
        settings=_names(input="query", expected="answers"),
        note=". The answers are calls, and become `expected.calls`",
    ),
)
"""Exports with the calls that answer the question."""
