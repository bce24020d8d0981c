"""Where scenarios come from and how they are split."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grpo.config.base import Settings


class FileSource(Settings):
    """Scenarios in a file, one record each, in the project's own fields."""

    kind: Literal["jsonl", "json", "parquet", "csv"]
    """Format of the file."""
    path: str
    """File to read, or a table in an object store (`s3://bucket/store/mixture/3fa1….parquet#sha256`); `.tsv` files of
    kind csv are read tab-separated."""


class HuggingFaceSource(Settings):
    """A dataset saved by `datasets` (a folder of `save_to_disk`), or one that is in the local cache."""

    kind: Literal["huggingface"]
    """A data set that `datasets` has saved to a folder."""
    path: str
    """Folder of the saved dataset."""
    split: str = "train"
    """Which split of it, where the folder holds several."""


class GeneratorSource(Settings):
    """A Python generator of records: `package.module:function`."""

    kind: Literal["generator"]
    """A Python function that yields records."""
    function: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    """A function without arguments that yields dicts; its sources, the packages that they import and the files that it
    opens take part in the cache identity."""
    files: tuple[str, ...] = ()
    """Files and folders that it reads in a way that Python does not see, as pyarrow does; they take part, too."""


MultiDoGOLevel = Literal["turn", "sentence"]


class MultiDoGOSource(Settings):
    """MultiDoGO: customers' turns of crowd-sourced service conversations (TSV)."""

    kind: Literal["multidogo"]
    """Conversations of MultiDoGO."""
    path: str
    """Folder that holds `<level>/<domain>/<part>.tsv`, or the publisher's repository."""
    domains: tuple[Literal["software", "finance", "fastfood", "airline", "insurance", "media"], ...] = Field(
        default=("software", "finance", "fastfood"), min_length=1
    )
    """Whose customers are taken."""
    parts: tuple[Literal["train", "dev", "test"], ...] = Field(default=("train", "dev"), min_length=1)
    """Which parts of the data set are read."""
    level: MultiDoGOLevel = "turn"
    """Level of the annotation that is read: one row a turn, or one row a sentence."""


class Tau2Source(Settings):
    """tau2-bench: tool tasks with a simulated user's goal, a database and expected calls."""

    kind: Literal["tau2_bench"]
    """Tasks of tau2-bench."""
    path: str
    """Folder that holds `<domain>/`, with its tasks, database and policy, or the publisher's repository."""
    domain: str = Field(default="retail", pattern=r"^\w[\w-]*$")
    """Whose tasks are taken: airline, banking_knowledge, mock, retail, telecom, or another folder of their layout."""
    tasks: str = Field(default="tasks.json", pattern=r"^\w[\w.-]*\.json$")
    """The file of tasks in the domain's folder, such as `tasks_small.json`."""


class ConversationLogSource(Settings):
    """What serving wrote down: each conversation as a scenario whose user says the same again."""

    kind: Literal["conversation_log"]
    """A folder that serving writes its conversations to."""
    path: str
    """Folder of the log; none there yet is a log without conversations."""
    files: tuple[str, ...] | None = None
    """Only these of its files, relative to the folder, while others are being added; none reads all that are there."""


class PublishedSource(Settings):
    """A published data set in its own files, read as docs/data.md says."""

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
    path: str
    """Folder of the data set's files, or the publisher's repository."""
    parts: tuple[str, ...] = ()
    """Parts that are read, such as `train` and `test`, or files by their own names; none reads those that docs/data.md
    counts."""


Source = Annotated[
    FileSource
    | HuggingFaceSource
    | GeneratorSource
    | MultiDoGOSource
    | Tau2Source
    | ConversationLogSource
    | PublishedSource,
    Field(discriminator="kind"),
]


class ScenarioSettings(Settings):
    """Ingestion, validation and split."""

    sources: tuple[Source, ...] = Field(min_length=1)
    """Read in this order into one table."""
    max_quarantined_fraction: float = Field(default=0.05, ge=0, le=1)
    """More unreadable records than this share stop the run."""
    validation_fraction: float = Field(default=0.25, gt=0, lt=1)
    """Share of each category that is held out for evaluation."""
    limit: int | None = Field(default=None, ge=1)
    """Use at most this many training scenarios and as many held-out ones, the first by hash."""
