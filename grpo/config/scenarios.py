"""Settings of scenarios: sources and split."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from grpo.config.base import LocalPath, Settings
from grpo.config.chats import ChatColumns, ChatFormatName, ChatSettings, LoggedUsers, MessageRows
from grpo.config.csv_format import CsvFormat
from grpo.config.python_object import Options, PythonObject
from grpo.config.served_log import ServedLogSettings, refuse_removed_log
from grpo.config.tasksets import taskset_reference

ScenarioField = Annotated[str, StringConstraints(pattern=r"^[a-z_]+(\.[a-z_]+)?$")]
"""Name of a field of a scenario, such as `id` or `metadata.category`."""
RecordsPlace = Annotated[str, StringConstraints(pattern=r"^[^.]+(\.[^.]+)*$", max_length=200)]
"""Keys that lead to a list in a JSON document, with dots between them."""
_BESIDE_A_CHAT = ("id", "topic", "domain", "split", "metadata")
"""Fields of a scenario that columns may give if a chat gives the others."""


class _TableSource(Settings):
    columns: dict[ScenarioField, str] = Field(default_factory=dict)
    """Column of each field of a scenario to read, `{id: ticket, user_responses: question, "metadata.category":
    topic}`. Other columns are left out. If this is empty, columns must have the names of the fields."""
    chat: ChatColumns | None = None
    """Chats, one per row: format and column. `columns` then maps further fields, such as metadata.category."""
    messages: MessageRows | None = None
    """One row per message, as help desks export them. `columns` then maps further fields, from the first row."""

    @model_validator(mode="after")
    def _one_way_to_read_rows(self) -> Self:
        if self.chat is not None and self.messages is not None:
            raise ValueError(
                "chat and messages exclude each other, because a row is either a chat or a message. Leave one out"
            )
        if self.chat is not None or self.messages is not None:
            taken = [name for name in self.columns if name.partition(".")[0] not in _BESIDE_A_CHAT]
            if taken:
                raise ValueError(
                    f"columns has {taken[0]}, which the chat gives. Leave it out. Only {', '.join(_BESIDE_A_CHAT)} can "
                    "be mapped"
                )
        return self


class FileSource(_TableSource):
    """Scenarios in a file, one record each, in the project's own fields or in columns that are mapped to them."""

    kind: Literal["jsonl", "json", "parquet", "arrow"]
    """Format of the file. arrow is Arrow's IPC format or Feather."""
    path: LocalPath
    """File to read, or a table in an object store (`s3://bucket/store/mixture/3fa1….parquet#sha256`)."""
    records: RecordsPlace | None = None
    """Place of the list of records in a JSON document, with dots: `data.rows`. None for a list, or one under
    `scenarios`."""

    @model_validator(mode="after")
    def _records_of_a_document(self) -> Self:
        if self.records is not None and self.kind != "json":
            raise ValueError(f"records has an effect only with kind json, not with {self.kind}. Leave it out")
        return self


class CsvSource(_TableSource, CsvFormat):
    """Scenarios in a delimited file with a header, one per row, or chats with one row per message."""

    kind: Literal["csv"]
    """Delimited text."""
    path: LocalPath
    """File to read."""


class HuggingFaceSource(_TableSource):
    """Dataset saved by `datasets`, a folder of `save_to_disk`."""

    kind: Literal["huggingface"]
    """Dataset of Hugging Face `datasets`."""
    path: LocalPath
    """Folder of the saved dataset."""
    split: str = "train"
    """Split to read, if the folder holds several."""


class HubDataSource(_TableSource):
    """Data set on the Hugging Face hub, in Parquet, JSON or CSV files. A run pins it to a commit."""

    kind: Literal["hub"]
    """Data set by its id on the Hugging Face hub."""
    id: str = Field(pattern=r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$", max_length=200)
    """Id of the data set, `org/name`."""
    revision: str | None = Field(default=None, pattern=r"^\w[\w./-]*$", max_length=200)
    """Branch, tag or commit. None is the newest commit of main."""
    subset: str | None = None
    """Subset, if the data set declares several and no default."""
    split: str = "train"
    """Split that is read."""
    csv: CsvFormat = CsvFormat()
    """Delimiter and encoding of CSV files, if they cannot be detected."""


class PythonSource(PythonObject):
    """Function of your own that yields records as dicts.

    Its sources, the packages that they import and the files that it opens are part of the cache key.
    """

    group = "grpo.scenarios"


MultiDoGOLevel = Literal["turn", "sentence"]


class ChatSource(ChatSettings):
    """Chats in a file from elsewhere: JSON lines, or a JSON document with a list (see docs/logs.md).

    The system prompt becomes the context, replies of the agent become references, and tool calls with their results
    become a replay. If a record ends with a call, it becomes an expected call.
    """

    kind: ChatFormatName
    """Format of the records: OpenAI's chat messages, ShareGPT, Alpaca, a prompt with its completion, or an input with
    its output, as exports of data sets and evaluations have."""
    path: LocalPath
    """File to read."""
    records: RecordsPlace | None = None
    """Place of the list of records in a JSON document, with dots: `results.results`. None for JSON lines or a list."""
    requests: LocalPath | None = None
    """Input file of a batch, if `path` is its output. Requests and replies are joined by `custom_id`."""

    @model_validator(mode="after")
    def _requests_of_a_batch(self) -> Self:
        if self.requests is not None and self.kind != "openai_messages":
            raise ValueError(
                f"requests has an effect only with kind openai_messages, not with {self.kind}. Leave it out"
            )
        return self

    @property
    def format(self) -> ChatFormatName:
        """Format of the records."""
        return self.kind


HelpDesk = Literal["zendesk", "intercom", "freshdesk", "chatwoot"]


class HelpDeskSource(Settings):
    """Tickets in JSON as a help desk exports them: JSON lines, a list, or a page of its API (see docs/logs.md).

    The customer's messages become the user's turns, and the agent's public replies become references. Notes are left
    out.
    """

    kind: HelpDesk
    """Help desk that exported the tickets."""
    path: LocalPath
    """File to read."""
    users: LoggedUsers = "script"
    """The user's turns as a script, or as the goal of a simulated user in the user's own words."""


TraceKind = Literal["langsmith", "langfuse", "braintrust", "weave", "mlflow", "openinference"]
"""Formats of exported traces."""


class TraceSource(Settings):
    """Export of traces: JSON lines, a JSON document with a list, CSV or Parquet (see docs/logs.md).

    The system prompt becomes the context, replies of the agent become references, and tool calls with their results
    become a replay.
    """

    kind: TraceKind
    """Format of the file: an export of LangSmith, Langfuse, Braintrust, Weave or MLflow, or spans with the attributes
    of OpenInference, as Phoenix and Arize export them."""
    path: LocalPath
    """File to read."""
    users: LoggedUsers = "script"
    """The user's turns as a script, or as the goal of a simulated user in the user's own words."""


class MultiDoGOSource(Settings):
    """MultiDoGO: customers' turns of crowd-sourced service conversations (TSV)."""

    kind: Literal["multidogo"]
    """Conversations of MultiDoGO."""
    path: LocalPath
    """Folder that holds `<level>/<domain>/<part>.tsv`, or the publisher's repository."""
    domains: tuple[Literal["software", "finance", "fastfood", "airline", "insurance", "media"], ...] = Field(
        default=("software", "finance", "fastfood"), min_length=1
    )
    """Domains that are read."""
    parts: tuple[Literal["train", "dev", "test"], ...] = Field(default=("train", "dev"), min_length=1)
    """Parts of the data set that are read."""
    level: MultiDoGOLevel = "turn"
    """Annotation level: one row per turn, or one row per sentence."""


class Tau2Source(Settings):
    """tau2-bench: tool tasks with a simulated user's goal, a database and expected calls."""

    kind: Literal["tau2_bench"]
    """Tasks of tau2-bench."""
    path: LocalPath
    """Folder that holds `<domain>/`, with its tasks, database and policy, or the publisher's repository."""
    domain: str = Field(default="retail", pattern=r"^\w[\w-]*$")
    """Domain of the tasks: airline, banking_knowledge, mock, retail, telecom, or another folder of their layout."""
    tasks: str = Field(default="tasks.json", pattern=r"^\w[\w.-]*\.json$")
    """File of tasks in the domain's folder, such as `tasks_small.json`."""


class ServedSource(ServedLogSettings):
    """Log of `grpo serve`, or of another server that appends to it: each conversation is a scenario."""

    users: LoggedUsers = "script"
    """The user's turns as a script, or as the goal of a simulated user in the user's own words."""


class PublishedSource(Settings):
    """Published data set in its original files (see docs/internals/data.md)."""

    kind: Literal[
        "abcd_sample",
        "banking77",
        "bfcl_multi_turn",
        "bitext_customer_service",
        "bridge_math_tutoring",
        "casino_negotiation",
        "cima_tutoring",
        "gsm8k",
        "mt_bench",
        "sgd",
        "taskmaster",
        "tau_bench_fewshot",
    ]
    """Name of the published data set."""
    path: LocalPath
    """Folder of the data set's files, or the publisher's repository."""
    parts: tuple[str, ...] = ()
    """Parts to read, for example `train`, or file names. None reads the parts that docs/internals/data.md lists."""


class VerifiersSource(Settings):
    """Tasks of a taskset of the package `verifiers`. The environment needs the same id and args."""

    kind: Literal["verifiers"]
    """Tasks of a taskset for `verifiers`. Needs the pip extra verifiers."""
    id: str = Field(pattern=r"^[\w./@-]+$", max_length=200)
    """Id of the taskset."""
    args: Options = Field(default_factory=dict)
    """Settings of the taskset, by name."""

    @property
    def reference(self) -> str:
        """`module:name` of the taskset, for its identity."""
        return taskset_reference(self.id)


Source = Annotated[
    FileSource
    | CsvSource
    | HuggingFaceSource
    | HubDataSource
    | ChatSource
    | TraceSource
    | HelpDeskSource
    | PythonSource
    | MultiDoGOSource
    | Tau2Source
    | ServedSource
    | PublishedSource
    | VerifiersSource,
    Field(discriminator="kind"),
    BeforeValidator(refuse_removed_log),
]


class ScenarioSettings(Settings):
    """Ingestion, validation and split."""

    sources: tuple[Source, ...] = Field(min_length=1)
    """Sources, read in this order into one table."""
    max_quarantined_fraction: float = Field(default=0.05, ge=0, le=1)
    """Fraction of unreadable records above which the run stops."""
    validation_fraction: float = Field(default=0.25, gt=0, lt=1)
    """Fraction of each category that is held out for evaluation."""
    limit: int | None = Field(default=None, ge=1)
    """Most training scenarios, and most held-out ones. If there are more, the first by hash are used."""
