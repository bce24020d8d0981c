"""Small made-up sources in every format that is read, and cuts of the published ones where they are at hand."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grpo.config.chats import ChatColumns, MessageRows
from grpo.config.scenarios import (
    ChatSource,
    CsvSource,
    FileSource,
    HelpDeskSource,
    MultiDoGOSource,
    PublishedSource,
    Source,
    Tau2Source,
    TraceSource,
)
from tests.fuzz.mutate import LITERALS
from tests.grpo.contrib.datasets import test_abcd_sample as abcd
from tests.grpo.contrib.datasets import test_bfcl_multi_turn as bfcl
from tests.grpo.contrib.datasets import test_bridge_math_tutoring as bridge
from tests.grpo.contrib.datasets import test_casino_negotiation as casino
from tests.grpo.contrib.datasets import test_cima_tutoring as cima
from tests.grpo.contrib.datasets import test_mt_bench as mt_bench
from tests.grpo.contrib.datasets import test_pandalm as pandalm
from tests.grpo.contrib.datasets import test_sgd as sgd
from tests.grpo.contrib.datasets import test_taskmaster as taskmaster
from tests.grpo.contrib.datasets import test_tau2_bench as tau2
from tests.grpo.scenarios.readers.exports import test_help_desks as desks
from tests.places import PUBLISHED

MAPPED = {"id": "ticket", "user_responses": "text", "metadata.category": "kind"}
"""Columns of the table whose columns have names of their own."""
CUT = 4
"""Records of a published file that are used."""


@dataclass(frozen=True, kw_only=True)
class Lines:
    """JSON lines."""

    items: list[Any]

    def encode(self) -> bytes:
        return b"".join(_dumps(item) + b"\n" for item in self.items)

    def replace(self, index: int, item: Any) -> Lines:
        return Lines(items=[*self.items[:index], item, *self.items[index + 1 :]])


@dataclass(frozen=True, kw_only=True)
class Document:
    """A JSON document; its records are a list, or the values of the object under `under`."""

    value: Any
    under: str | None = None

    @property
    def items(self) -> list[Any]:
        return self.value if self.under is None else list(self.value[self.under].values())

    def encode(self) -> bytes:
        return _dumps(self.value)

    def replace(self, index: int, item: Any) -> Document:
        if self.under is None:
            return Document(value=[*self.value[:index], item, *self.value[index + 1 :]])
        records = dict(zip(self.value[self.under], [*self.items[:index], item, *self.items[index + 1 :]], strict=True))
        return Document(value={**self.value, self.under: records}, under=self.under)


@dataclass(frozen=True, kw_only=True)
class Cells:
    """A delimited file."""

    header: list[str]
    items: list[list[str]]
    delimiter: str = ","

    def encode(self) -> bytes:
        text = io.StringIO(newline="")
        csv.writer(text, delimiter=self.delimiter).writerows([self.header, *self.items])
        return text.getvalue().encode(errors="surrogatepass")

    def replace(self, index: int, item: list[str]) -> Cells:
        items = [*self.items[:index], item, *self.items[index + 1 :]]
        return Cells(header=self.header, items=items, delimiter=self.delimiter)


@dataclass(frozen=True, kw_only=True)
class Text:
    """Text that holds no records."""

    text: str
    items: list[Any] = field(default_factory=list)

    def encode(self) -> bytes:
        return self.text.encode()


Content = Lines | Document | Cells | Text


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The files of a source: those with records, and their companions."""

    name: str
    files: dict[str, Content]
    companions: tuple[str, ...] = ()
    source: Callable[[Path], Source] | None = None
    """None where the files are read as pairs or labels."""
    judged: str | None = None
    """`pairs` or `labels`."""
    fan: int = 1
    """Records per item; above 1, an item may give more or fewer."""

    @property
    def kind(self) -> str:
        """Name of the format, without the part of the project that reads it."""
        return self.name.partition(" ")[0]


def _dumps(value: Any) -> bytes:
    text = json.dumps(value)
    for name, literal in LITERALS.items():
        text = text.replace(f'"{name}"', literal)
    return text.encode()


def _published(kind: str) -> Callable[[Path], Source]:
    return lambda folder: PublishedSource.model_validate({"kind": kind, "path": str(folder)})


def _file(kind: str, name: str) -> Callable[[Path], Source]:
    if kind == "csv":
        return lambda folder: CsvSource(kind="csv", path=str(folder / name))
    return lambda folder: FileSource.model_validate({"kind": kind, "path": str(folder / name)})


def plain(number: int) -> dict[str, Any]:
    """A scenario in the project's own fields."""
    return {
        "id": f"s{number}",
        "topic": "orders",
        "domain": "customer_service",
        "user_responses": [f"My order {number} is late.", "Thanks."],
        "tools": [{"name": "look_up", "description": "", "parameters": {"type": "object", "properties": {}}}],
        "world": {"orders": {str(number): {"state": "lost", "price": 1.5}}},
        "expected": {"responses": ["I look."], "facts": ["lost"], "calls": [], "state": {}},
        "metadata": {"category": "missing", "difficulty": "easy", "source": "own", "licence": "own", "consent": ""},
        "split": None,
    }


def _row(number: int) -> list[str]:
    return [f"s{number}", f"My order {number}, again.", "It is\nlate.", '{"category": "missing"}', '{"n": [1]}']


def _bfcl() -> dict[str, Content]:
    docs = {f"multi_turn_func_doc/{name}.json": Lines(items=[]) for name in bfcl.DOCS}
    docs["multi_turn_func_doc/gorilla_file_system.json"] = Lines(items=[bfcl.SORT, bfcl.CP])
    calls = [["sort('x', limits=[1, -.5])"], ["cp()", "sort(file_name='y')"]]
    return {
        bfcl.FILE: Lines(items=[bfcl.task(name) for name in "abcd"]),
        f"possible_answer/{bfcl.FILE}": Lines(items=[{"id": name, "ground_truth": calls} for name in "abcd"]),
        **docs,
    }


def _tau2() -> dict[str, Content]:
    tasks = [tau2.task(str(k), f"Return order #W{k}.", ("return", {"order": f"#W{k}"})) for k in range(1, 5)]
    return {
        "retail/tasks.json": Document(value=tasks),
        "retail/db.json": Document(value=tau2.SHOP),
        "retail/split_tasks.json": Document(value={"train": ["1", "2"], "test": ["3"]}),
        "retail/policy.md": Text(text="Be kind.\n"),
    }


def _multidogo() -> dict[str, Content]:
    header = ["conversationId", "turnNumber", "utteranceId", "utterance", "slot-labels", "intent"]
    rows = [
        [f"c{k}", str(turn), "u", f"my mouse {k} broke", "O", "reportbrokensoftware"]
        for k in range(4)
        for turn in (0, 3)
    ]
    return {"turn/software/train.tsv": Cells(header=header, items=rows, delimiter="\t")}


def _openai_chat(number: int) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": f'{{"order": "{number}"}}'}}
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": f"Where is order {number}?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": '{"state": "lost"}'},
        {"role": "assistant", "content": "It is lost."},
    ]
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
    return {"id": f"s{number}", "messages": messages, "tools": [tool], "metadata": {"category": "missing"}}


def _sharegpt_chat(number: int) -> dict[str, Any]:
    turns = [
        ("human", f"Where is order {number}?"),
        ("function_call", f'{{"name": "look_up", "arguments": {{"order": "{number}"}}}}'),
        ("observation", "lost"),
        ("gpt", "It is lost."),
    ]
    return {"id": f"s{number}", "conversations": [{"from": speaker, "value": text} for speaker, text in turns]}


def _turns(number: int, turn: int) -> list[dict[str, Any]]:
    """Messages that the call of a turn reads."""
    history = [{"role": "user", "content": f"Hi {number}."}]
    again = [{"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Bye."}]
    return history + (again if turn else [])


def _langsmith_run(number: int, turn: int) -> dict[str, Any]:
    return {
        "id": f"r{number}{turn}",
        "trace_id": f"t{number}{turn}",
        "run_type": "llm",
        "start_time": f"2026-11-20T09:0{turn}:00",
        "inputs": {"messages": _turns(number, turn)},
        "outputs": {"choices": [{"message": {"role": "assistant", "content": "Yes?"}}]},
        "extra": {"metadata": {"thread_id": f"s{number}"}},
    }


def _langfuse_row(number: int, turn: int) -> dict[str, Any]:
    return {
        "id": f"r{number}{turn}",
        "trace_id": f"t{number}{turn}",
        "session_id": f"s{number}",
        "type": "GENERATION",
        "start_time": f"2026-11-20 09:0{turn}:00",
        "input": json.dumps(_turns(number, turn)),
        "output": {"role": "assistant", "content": "Yes?"},
    }


def _message_rows() -> list[list[str]]:
    turns = (("user", "2026-11-20T09:00:00Z", "Hi."), ("agent", "2026-11-20T09:01:00+01:00", "Yes?"))
    return [[f"s{k}", who, at, f"{text} {k}"] for k in range(4) for who, at, text in turns]


def _reply_cells() -> list[list[str]]:
    """Rows of a message and its reply. The last reply of a chat is missing."""
    turns = (("2026-11-20T09:00:00Z", "Hi.", "Yes?"), ("2026-11-20T09:01:00Z", "My lamp is broken.", ""))
    return [[f"s{k}", at, f"{asked} {k}", answer] for k in range(4) for at, asked, answer in turns]


def _reply_rows() -> list[dict[str, Any]]:
    return [
        {"chat": chat, "at": at, "asked": {"text": asked}, "answer": answer or None}
        for chat, at, asked, answer in _reply_cells()
    ]


_TICKETS = {
    "zendesk": desks.ZENDESK,
    "intercom": desks.INTERCOM,
    "freshdesk": desks.FRESHDESK,
    "chatwoot": {"messages": desks.CHATWOOT["payload"]},
}


def _span(number: int, turn: int) -> dict[str, Any]:
    """A call of a model with the keys of Braintrust, of Weave and of OpenInference."""
    messages = [{"role": "user", "content": f"Lamp {number}, turn {turn}?"}]
    reply = {"role": "assistant", "content": f"Yes, {turn}."}
    return {
        "id": f"r{number}-{turn}", "root_span_id": f"t{number}", "trace_id": f"t{number}", "span_kind": "LLM",
        "created": f"2026-11-20T09:0{turn}:00", "input": messages, "output": [{"message": reply}],
        "span_attributes": {"type": "llm"}, "inputs": {"messages": messages},
        "attributes": {
            "llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": f"Lamp {turn}?",
            "llm.output_messages": [{"message": reply}],
        },
    }  # fmt: skip


def _mlflow_trace(number: int, turn: int) -> dict[str, Any]:
    """A trace as MLflow exports it: a root, and a call of a model whose attributes are JSON in texts."""
    messages = [{"role": "user", "content": f"Lamp {number}, turn {turn}?"}]
    reply = {"choices": [{"message": {"role": "assistant", "content": f"Yes, {turn}."}}]}
    values = {"Type": "CHAT_MODEL", "Inputs": {"messages": messages}, "Outputs": reply}
    start = (1_763_629_200 + turn) * 10**9
    root = {"span_id": "root", "parent_span_id": None, "start_time_unix_nano": start, "attributes": {}}
    call = {
        "span_id": "call", "parent_span_id": "root", "start_time_unix_nano": start + 1,
        "attributes": {f"mlflow.span{name}": json.dumps(value) for name, value in values.items()},
    }  # fmt: skip
    info = {"trace_id": f"t{number}-{turn}", "trace_metadata": {"mlflow.trace.session": f"s{number}"}}
    return {"info": info, "data": {"spans": [root, call]}}


def _chat_file(kind: str) -> str:
    return "chats.json" if kind == "sharegpt" else "chats.jsonl"


def _chat(kind: str) -> Callable[[Path], Source]:
    model = (
        TraceSource
        if kind in ("langsmith", "langfuse", "braintrust", "weave", "mlflow", "openinference")
        else HelpDeskSource
        if kind in _TICKETS
        else ChatSource
    )
    return lambda folder: model.model_validate({"kind": kind, "path": str(folder / _chat_file(kind))})


def _pair(number: int) -> dict[str, str]:
    return {
        "chosen": f"\n\nHuman: Is {number} even?\n\nAssistant: Count it.",
        "rejected": f"\n\nHuman: Is {number} even?\n\nAssistant: Hm.",
    }


def _made() -> list[Sample]:
    """Sources written here, in the formats as they are published."""
    moments = [bridge.moment(name, "t:Area?", f"s:{name}") for name in "abcd"]
    tutoring = {"train.json": Document(value=moments), "validation.json": Document(value=moments[:1])}
    negotiations = [casino.dialogue(k, user=18, agent=23) for k in range(4)]
    camps = {"casino_train.json": Document(value=negotiations), "casino_valid.json": Document(value=[])}
    exercises = {name: cima.exercise() for name in "abcd"}
    italian = {"dataset.json": Document(value={"prepDataset": exercises, "shapeDataset": {}}, under="prepDataset")}
    orders = [taskmaster.order(name, *taskmaster.call(0, "add", '{"id": "7"}')) for name in "abcd"]
    steps = [taskmaster.step(name, '{"role": "agent", "text": "Hello."}') for name in "abcd"]
    exchange = {"context": "May I?", "response": "Ask a doctor.", "category": "Risk Ignorance", "label": "Safe"}
    utterances = [[f"Where is {k}", "track", "", "", "", "", "ORDER", "B"] for k in range(4)]
    intents = ["utterance", "intent", "entity_type", "entity_value", "start_offset", "end_offset", "category", "tags"]
    asked = Cells(header=intents, items=utterances)
    questions = [[f"Where is {k}?", "card"] for k in range(4)]
    dialogues = [sgd.dialogue(str(k), "Food_1", calls=("Find",), first=f"Hi {k}.") for k in range(4)]
    transcripts = [{"messages_display": f"user: Hi {k}\nassistant: Who?\nuser: Ann ###STOP###"} for k in range(4)]
    abcd_files: dict[str, Content] = {
        "abcd_sample.json": Document(value=[{**abcd.conversation(), "convo_id": k} for k in range(4)]),
        "kb.json": Document(value=abcd.KB),
        "ontology.json": Document(value=abcd.ONTOLOGY),
    }
    sgd_files: dict[str, Content] = {
        "train/dialogues_001.json": Document(value=dialogues),
        "train/schema.json": Document(value=sgd.SCHEMA),
        "dev/dialogues_001.json": Document(value=[]),
        "dev/schema.json": Document(value=sgd.SCHEMA),
    }
    bench: dict[str, Content] = {
        "question.jsonl": Lines(items=[mt_bench.question(k) for k in range(4)]),
        "reference_answer_gpt-4.jsonl": Lines(items=[mt_bench.answer(0, "One.", "Two.")]),
    }
    own_columns = ["id", "user_0", "user_1", "metadata", "world"]
    card: dict[str, Content] = {"train.csv": Cells(header=["text", "category"], items=questions)}
    sums = [{"question": f"How many in {k}?", "answer": f"He has <<1*{k}={k}>>{k}.\n#### {k}"} for k in range(4)]
    scenarios = [plain(k) for k in range(6)]
    rows = [_row(k) for k in range(6)]
    own = [
        ("jsonl", "s.jsonl", Lines(items=scenarios)),
        ("json", "s.json", Document(value=scenarios)),
        ("csv", "s.csv", Cells(header=own_columns, items=rows)),
        ("csv", "s.tsv", Cells(header=own_columns, items=rows, delimiter="\t")),
    ]
    chats: list[tuple[str, Content, int]] = [
        ("openai_messages", Lines(items=[_openai_chat(k) for k in range(4)]), 1),
        ("sharegpt", Document(value=[_sharegpt_chat(k) for k in range(4)]), 1),
        ("alpaca", Lines(items=[{"instruction": f"Say {k}.", "input": "", "output": f"{k}"} for k in range(4)]), 1),
        ("prompt_completion", Lines(items=[{"prompt": f"Say {k}.", "completion": f"{k}"} for k in range(4)]), 1),
        (
            "input_output",
            Lines(
                items=[
                    {"input": {"messages": [{"role": "user", "content": f"{k}?"}]}, "expected": [f"{k}", "no"]}
                    for k in range(4)
                ]
            ),
            1,
        ),
        *(
            (kind, Lines(items=[_span(k, turn) for k in range(4) for turn in range(2)]), 2)
            for kind in ("braintrust", "weave", "openinference")
        ),
        ("mlflow", Lines(items=[_mlflow_trace(k, turn) for k in range(4) for turn in range(2)]), 2),
        ("langsmith", Lines(items=[_langsmith_run(k, turn) for k in range(4) for turn in range(2)]), 2),
        ("langfuse", Lines(items=[_langfuse_row(k, turn) for k in range(4) for turn in range(2)]), 2),
        *((kind, Lines(items=[{**ticket, "id": str(k)} for k in range(4)]), 1) for kind, ticket in _TICKETS.items()),
    ]
    published: list[tuple[str, dict[str, Content], tuple[str, ...]]] = [
        ("abcd_sample", abcd_files, ("kb.json", "ontology.json")),
        ("banking77", {**card, "categories.json": Document(value=["card"])}, ("categories.json",)),
        ("bfcl_multi_turn", _bfcl(), tuple(name for name in _bfcl() if "/" in name)),
        ("bitext_customer_service", {f"{p}.csv": asked for p in ("train", "dev")}, ()),
        ("bridge_math_tutoring", tutoring, ()),
        ("casino_negotiation", camps, ()),
        ("cima_tutoring", italian, ()),
        ("gsm8k", {"train.jsonl": Lines(items=sums)}, ()),
        ("mt_bench", bench, ("reference_answer_gpt-4.jsonl",)),
        ("sgd", sgd_files, ("train/schema.json", "dev/schema.json")),
        ("taskmaster", {"tm4/data_00.json": Document(value=orders)}, ()),
        ("tau_bench_fewshot", {"MockRetailDomainEnv-few_shot.jsonl": Lines(items=transcripts)}, ()),
    ]
    judged: list[tuple[str, str, dict[str, Content], int]] = [
        ("bridge_math_tutoring", "pairs", tutoring, 1),
        ("hh_rlhf_harmless", "pairs", {"x.jsonl": Lines(items=[_pair(k) for k in range(4)])}, 1),
        ("pandalm", "pairs", {"testset-v1.json": Document(value=[pandalm.comparison(k) for k in range(4)])}, 1),
        ("casino_negotiation", "labels", camps, 1),
        ("cima_tutoring", "labels", italian, 8),
        ("diasafety", "labels", {f"{part}.json": Document(value=[exchange] * 4) for part in ("train", "val")}, 1),
        ("taskmaster", "labels", {f"{tm}/reward_00.json": Document(value=steps) for tm in ("tm3", "tm4")}, 1),
    ]
    return [
        *(
            Sample(name=Path(name).suffix[1:], files={name: content}, source=_file(kind, name))
            for kind, name, content in own
        ),
        Sample(
            name="csv columns",
            files={
                "t.csv": Cells(header=["ticket", "text", "kind"], items=[[f"s{k}", f"Hi {k}.", "x"] for k in range(4)])
            },
            source=lambda folder: CsvSource(kind="csv", path=str(folder / "t.csv"), columns=MAPPED),
        ),
        Sample(
            name="csv semicolons",
            files={
                "t.csv": Cells(
                    header=["ticket", "text", "kind"],
                    items=[[f"s{k}", f"Hi {k}.", "x"] for k in range(4)],
                    delimiter=";",
                )
            },
            source=lambda folder: CsvSource(kind="csv", path=str(folder / "t.csv"), delimiter=";", columns=MAPPED),
        ),
        Sample(
            name="csv messages",
            files={"m.csv": Cells(header=["chat", "who", "at", "text"], items=_message_rows())},
            fan=2,
            source=lambda folder: CsvSource(
                kind="csv",
                path=str(folder / "m.csv"),
                messages=MessageRows(group_by="chat", speaker="who", text="text", order="at"),
            ),
        ),
        Sample(
            name="csv messages with replies",
            files={"r.csv": Cells(header=["chat", "at", "asked", "answer"], items=_reply_cells())},
            fan=2,
            source=lambda folder: CsvSource(
                kind="csv",
                path=str(folder / "r.csv"),
                messages=MessageRows(group_by="chat", text="asked", reply="answer", order="at"),
            ),
        ),
        Sample(
            name="jsonl messages with replies",
            files={"r.jsonl": Lines(items=_reply_rows())},
            fan=2,
            source=lambda folder: FileSource(
                kind="jsonl",
                path=str(folder / "r.jsonl"),
                messages=MessageRows(group_by="chat", text="asked.text", reply="answer", order="at"),
            ),
        ),
        Sample(
            name="jsonl chat",
            files={"c.jsonl": Lines(items=[{**_openai_chat(k), "kind": "x"} for k in range(4)])},
            source=lambda folder: FileSource(
                kind="jsonl",
                path=str(folder / "c.jsonl"),
                chat=ChatColumns(column="messages"),
                columns={"metadata.category": "kind"},
            ),
        ),
        *(
            Sample(name=kind, files={_chat_file(kind): content}, source=_chat(kind), fan=fan)
            for kind, content, fan in chats
        ),
        *(Sample(name=k, files=f, companions=c, source=_published(k)) for k, f, c in published),
        Sample(
            name="multidogo",
            files=_multidogo(),
            fan=2,
            source=lambda folder: MultiDoGOSource(
                kind="multidogo", path=str(folder), domains=("software",), parts=("train",)
            ),
        ),
        Sample(
            name="tau2_bench",
            files=_tau2(),
            companions=("retail/db.json", "retail/split_tasks.json", "retail/policy.md"),
            source=lambda folder: Tau2Source(kind="tau2_bench", path=str(folder), domain="retail"),
        ),
        *(Sample(name=f"{k} {how}", files=files, judged=how, fan=fan) for k, how, files, fan in judged),
    ]


def _cut(content: Content, path: Path, most: int | None) -> Content:
    """The first records of a published file in this format, or all of it."""
    raw = path.read_bytes()
    if isinstance(content, Lines):
        return Lines(items=[json.loads(line) for line in raw.splitlines()[:most] if line.strip()])
    if isinstance(content, Cells):
        rows = list(csv.reader(io.StringIO(raw.decode("utf-8-sig"), newline=""), delimiter=content.delimiter))
        return Cells(header=rows[0], items=rows[1:][:most], delimiter=content.delimiter)
    if isinstance(content, Text):
        return Text(text=raw.decode())
    value = json.loads(raw)
    if content.under is not None:
        return Document(value={content.under: dict(list(value[content.under].items())[:most])}, under=content.under)
    return Document(value=value[:most] if isinstance(value, list) else value)


def _real(sample: Sample) -> Sample | None:
    """The same files of the published set, cut to their first records; None where they are not at hand."""
    folder = PUBLISHED / sample.kind
    if not sample.files or not all((folder / name).is_file() for name in sample.files):
        return None
    files = {
        name: _cut(content, folder / name, None if name in sample.companions else CUT)
        for name, content in sample.files.items()
    }
    return replace(sample, name=f"{sample.name} (published)", files=files)


def samples() -> list[Sample]:
    """Every sample, by name."""
    made = _made()
    return [*made, *filter(None, map(_real, made))]
