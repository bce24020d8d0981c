"""Rewards on real data, learned ones on held-out examples; writes docs/internals/rewards.md.

    python -m tests.benchmarks.rewards --data ../shared/data                 measure all, from scratch
    python -m tests.benchmarks.rewards --data ../shared/data --only safety   one of them; the other rows stay

The safety reward that ships in data/models/safety is written by `--only safety`; with `--keep-model` only its
calibration is.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from pydantic import BaseModel

from grpo.messages import Message
from grpo.rewards.learned.calibration import calibrate
from grpo.rewards.learned.features import PromptedReply
from grpo.rewards.learned.metrics import HeldOutMetric, auc, wilson_interval
from grpo.rewards.learned.model_card import DataSource, ModelCard
from grpo.rewards.learned.network import read_network
from grpo.rewards.learned.safety import SHIPPED, SafetyModel, score_safety
from grpo.rewards.learned.safety_head import write_head
from grpo.rewards.learned.training import held_out_mask, train_on_labels, train_on_pairs
from grpo.rewards.text.answers import final_answer
from grpo.rewards.text.refusals import is_refusal
from grpo.scenarios.reward_data import LabelledReply, read_labels, read_pairs
from grpo.storage.files import file_digest
from tests.benchmarks.made_up import made_up
from tests.benchmarks.safety_head import train_head
from tests.benchmarks.safety_makers import across, judged, without_each
from tests.contrast import CONTRAST, Question, Side, answers, questions, wordings
from tests.places import INTERNALS, PUBLISHED

PAGE = INTERNALS / "rewards.md"
RECORD = PAGE.with_suffix(".json")
INTRODUCTION = """\
`python -m tests.benchmarks.rewards --data ../shared/data` writes this page, and `--only NAME` measures a single part
again. An AUC or accuracy of .5 is guessing. Everything is trained from scratch on one core, and the column s has the
seconds of one training with its measurement. If each fifth is held out once, the value is the mean over the fifths."""


DIASAFETY, OWN = "DiaSafety", "data/contrast"
"""Makers of labelled replies."""


class Row(BaseModel):
    """One line of the table."""

    reward: str
    data: str
    split: str
    trained: int
    measure: HeldOutMetric
    goal: float | None
    seconds: float
    command: str


def train_safety(data: Path) -> None:
    """Train the shipped model on DiaSafety's train part and on made-up and harmless replies, and write it."""
    folder = data / "diasafety"
    replies = read_labels("diasafety", folder).items
    labelled = [item for item in replies if item.split == "train"]
    heldout = [item for item in replies if item.split == "heldout"]
    made = Path(__file__).with_name("made_up.py")
    sources = (
        _source("DiaSafety", "Apache-2.0", [folder / "train.json"]),
        _source("PandaLM", "Apache-2.0", [data / "pandalm" / "testset-v1.json"]),
        _source("made-up exchanges", "Apache-2.0", [made, CONTRAST / "harmless.yaml", CONTRAST / "harmful.yaml"]),
        _source("Taskmaster-3 and 4", "CC-BY-4.0", sorted((data / "taskmaster").glob("tm*/reward_*.json"))),
    )
    trained = [*labelled, *harmless(data), *made_up(3000, seed=0), *contrast("development")]
    split = "DiaSafety's validation part and half of data/contrast"
    card = train_on_labels(
        [*labelled, *harmless(data), *made_up(600, seed=0)], heldout, SHIPPED, sources=sources, split=split
    )
    network, _ = read_network(SHIPPED)
    model = SafetyModel(network=network, head=train_head(trained), card=card)
    replies_of = [PromptedReply(prompt=item.prompt, reply=item.reply) for item in heldout]
    scores = np.array([reply.score for reply in score_safety(model, replies_of)])
    measured = auc(scores, [bool(item.score) for item in heldout])
    write_head(SHIPPED, model.head, card.model_copy(update={"heldout": measured, "trained": len(trained)}))


def measure_safety(data: Path, *, keep_model: bool = False) -> list[Row]:
    """Train the shipped model, unless it is kept; leave each maker of replies out, and calibrate with that."""
    if not keep_model:
        train_safety(data)
    began = time.perf_counter()
    replies = read_labels("diasafety", data / "diasafety").items
    own = [*contrast("development"), *contrast("held_out")]
    makers = {
        DIASAFETY: [item for item in replies if item.split == "train"][::2],
        OWN: [*made_up(3000, seed=0), *own],
    }
    measured = {DIASAFETY: [item for item in replies if item.split == "heldout"], OWN: own}
    always = harmless(data)[::2]
    left_out = without_each(makers, measured, always)
    _, card = read_network(SHIPPED)
    card.model_copy(update={"sure": calibrate(left_out)}).write(SHIPPED)
    seconds = (time.perf_counter() - began) / len(makers)
    rows = []
    for maker, (region, (scores, safe)) in across(left_out).items():
        count = len(always) + sum(len(items) for name, items in makers.items() if name != maker)
        certain = judged(region, scores)
        measures = [
            (auc(scores, safe), 0.80),
            (_share("share judged", certain), 0.50),
            (_share("safe replies taken for unsafe", scores[safe] < region.low), None),
            (_share("unsafe replies taken for safe", scores[~safe] > region.high), None),
        ]
        if (certain & safe).any():
            measures.append((_share("judged safe replies taken for unsafe", scores[certain & safe] < region.low), None))
        if len({*safe[certain].tolist()}) == 2:
            measures.insert(
                1, (auc(scores[certain], safe[certain]).model_copy(update={"name": "AUC of those judged"}), 0.80)
            )
        rows += [_row("safety", maker, "this source", count, *measure, seconds) for measure in measures]
    return rows


def _share(name: str, right: Sequence[bool] | np.ndarray) -> HeldOutMetric:  # type: ignore[type-arg]
    """Share of the examples that are True, with its Wilson interval."""
    count, total = int(np.sum(right)), len(right)
    low, high = wilson_interval(count, total)
    return HeldOutMetric(name=name, value=count / total, low=low, high=high, count=total)


def contrast(split: Side) -> list[LabelledReply]:
    """Half of the questions of data/contrast with replies that do what they ask."""
    return [
        *(_exchange(question, question.reply, 1.0) for question in questions("harmless", split)),
        *(_exchange(question, question.reply, 0.0) for question in questions("harmful", split)),
    ]


def _exchange(question: Question, reply: str, score: float) -> LabelledReply:
    return LabelledReply(
        id=question.asked, group=question.asked, prompt=(Message(role="user", content=question.asked),),
        reply=Message(role="assistant", content=reply), label="Safe" if score else "Unsafe", score=score,
        category="contrast", source="data/contrast", licence="Apache-2.0",
    )  # fmt: skip


def measure_refusals(data: Path) -> list[Row]:
    """The detector of refusals on families of openings, and kinds of other replies, that were held out."""
    began = time.perf_counter()
    declined, answered = wordings("held_out"), answers("held_out")
    detected, false = [is_refusal(reply) for reply in declined], sum(map(is_refusal, answered))
    flagged = [True] * sum(detected) + [False] * false
    return [
        _row(
            "detector of refusals", "data/contrast", "held-out families, own wordings", 0, metric, goal,
            time.perf_counter() - began,
        )
        for metric, goal in ((_share("recall", detected), 0.90), (_share("precision", flagged), 0.95))
    ]  # fmt: skip


def harmless(data: Path) -> list[LabelledReply]:
    """Replies to instructions and in shops, assumed safe: without them ordinary helpful words would be unknown."""
    pairs = read_pairs("pandalm", data / "pandalm").items
    found = [
        LabelledReply(
            id=f"{pair.id}-{split}", group=pair.group, prompt=pair.prompt, reply=reply, label="Safe", score=1.0,
            category="harmless", source=pair.source, licence=pair.licence,
        )
        for pair in pairs
        for split, reply in (("chosen", pair.chosen), ("rejected", pair.rejected))
    ]  # fmt: skip
    steps = [item for item in read_labels("taskmaster", data / "taskmaster").items if item.reply.content]
    safe = {"label": "Safe", "score": 1.0, "category": "harmless"}
    return [*found, *(item.model_copy(update=safe) for item in steps[::3])]


def measure_harmlessness(data: Path) -> list[Row]:
    """Pairs of HH-RLHF; those that open with the same words are held out together."""
    folder = data / "hh_rlhf_harmless"
    pairs = read_pairs("hh_rlhf_harmless", folder).items
    groups = [opening(pair.prompt) for pair in pairs]
    sources = (_source("hh-rlhf harmless", "MIT", sorted(folder.glob("*.jsonl.gz"))),)
    split = "a fifth by opening message"

    def learn(out: Path, held: np.ndarray, part: str) -> ModelCard:
        return train_on_pairs(*_apart(pairs, held), out, sources=sources, split=part)

    return _folds("neural, pairs", "hh_rlhf_harmless", split, groups, learn, goal=0.60)


def measure_steps(data: Path, name: str, goal: float) -> list[Row]:
    """Judged steps of Taskmaster; by dialogue, and by record as the files' own ids would have it."""
    steps = [item for item in read_labels("taskmaster", data / "taskmaster").items if item.category == name]
    sources = (_source(f"Taskmaster {name}", "CC-BY-4.0", sorted((data / "taskmaster" / name).glob("reward_*.json"))),)

    def learn(out: Path, held: np.ndarray, part: str) -> ModelCard:
        return train_on_labels(*_apart(steps, held), out, sources=sources, split=part)

    dialogues = [opening(item.prompt) for item in steps]
    ids = [item.id for item in steps]
    return [
        *_folds("neural, labels", f"Taskmaster {name}", "a fifth by dialogue", dialogues, learn, goal=goal),
        *_folds("neural, labels", f"Taskmaster {name}", "a fifth by conversation_id", ids, learn, goal=goal),
    ]


ANSWERS = {
    "as published, `#### 72`": "{worked}\n#### {label}",
    "`The answer is $72.00.`": "{worked}\nThe answer is ${label}.00.",
    "`\\boxed{72}`": "{worked} \\boxed{{{label}}}",
    "as written, without `####`": "{worked}",
}
"""Forms in which a final answer occurs."""


def measure_answers(data: Path) -> list[Row]:
    """Final answers of GSM8K's worked solutions, read from each form that occurs, against the labels."""
    lines = (data / "gsm8k" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    solutions = [json.loads(line)["answer"].partition("####") for line in lines]
    rows = []
    for form, template in ANSWERS.items():
        began = time.perf_counter()
        right = [
            final_answer(template.format(worked=worked.strip(), label=label.strip()))
            == Fraction(label.strip().replace(",", ""))
            for worked, _, label in solutions
        ]
        goal = 0.995 if "{label}" in template else None
        metric = _share("agreement", right)
        rows.append(_row("correctness, final answers", "GSM8K", form, 0, metric, goal, time.perf_counter() - began))
    return rows


def opening(prompt: tuple[Message, ...]) -> str:
    """Messages up to the user's first one. Dialogues that begin alike are held out together."""
    first = next((place for place, message in enumerate(prompt) if message.role == "user"), len(prompt) - 1)
    return "\n".join(message.content.lower().strip() for message in prompt[: first + 1])


def _folds(
    reward: str,
    data: str,
    split: str,
    groups: list[str],
    learn: Callable[[Path, np.ndarray, str], ModelCard],
    *,
    goal: float,
) -> list[Row]:
    """Hold out each fifth once; the measure is the mean over the fifths, its interval that of all examples together."""
    began = time.perf_counter()
    cards = []
    for part in range(5):
        with TemporaryDirectory() as folder:
            cards.append(learn(Path(folder), held_out_mask(groups, part=part), f"{split}, part {part}"))
    seconds = (time.perf_counter() - began) / 5
    measures = [card.heldout for card in cards if card.heldout is not None]
    counts = np.array([m.count for m in measures])
    share = counts / counts.sum()
    value = float(share @ [m.value for m in measures])
    half = float(np.sqrt(share**2 @ [((m.high - m.low) / 2) ** 2 for m in measures]))
    pooled = HeldOutMetric(
        name=measures[0].name, value=value, low=value - half, high=value + half, count=int(counts.sum())
    )
    trained = round(float(np.mean([card.trained for card in cards])))
    return [_row(reward, data, f"{split}, each fifth once", trained, pooled, goal, seconds)]


def _apart(items: Iterable[object], held: np.ndarray) -> tuple[list, list]:  # type: ignore[type-arg]
    pairs = list(zip(items, held, strict=True))
    return [item for item, out in pairs if not out], [item for item, out in pairs if out]


def _source(name: str, licence: str, files: list[Path]) -> DataSource:
    return DataSource(
        name=name, licence=licence, sha256={f"{path.parent.name}/{path.name}": file_digest(path) for path in files}
    )


MEASURES: dict[str, Callable[[Path], list[Row]]] = {
    "safety": measure_safety,
    "refusals": measure_refusals,
    "harmlessness": measure_harmlessness,
    "tm3": lambda data: measure_steps(data, "tm3", 0.75),
    "tm4": lambda data: measure_steps(data, "tm4", 0.62),
    "answers": measure_answers,
}


def _row(
    reward: str, data: str, split: str, trained: int, measure: HeldOutMetric, goal: float | None, seconds: float
) -> Row:
    return Row(
        reward=reward, data=data, split=split, trained=trained, measure=measure, goal=goal, seconds=seconds, command=""
    )


def write_page(rows: list[Row], page: Path) -> None:
    """Write the table and its notes."""
    lines = [
        "# Rewards on real data",
        "",
        INTRODUCTION,
        "",
        "| reward | data | held out | trained on | n | measure | 95 % interval | goal | s | `--only` |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        m = row.measure
        goal = "" if row.goal is None else f"{row.goal:.2f}" + (": missed" if m.value < row.goal else "")
        lines.append(
            f"| {row.reward} | {row.data} | {row.split} | {row.trained:,} | {m.count:,} | {m.name} {m.value:.3f} | "
            f"{m.low:.3f} to {m.high:.3f} | {goal} | {row.seconds:.0f} | {row.command} |"
        )
    lines += ["", (Path(__file__).parent / "rewards_notes.md").read_text(encoding="utf-8").strip()]
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Measure, keep the rows, write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=PUBLISHED)
    parser.add_argument("--only", choices=sorted(MEASURES))
    parser.add_argument("--keep-model", action="store_true", help="calibrate the shipped safety model as it is")
    asked = parser.parse_args()
    kept = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
    for name in [asked.only] if asked.only else MEASURES:
        measure = partial(measure_safety, keep_model=asked.keep_model) if name == "safety" else MEASURES[name]
        rows = [row.model_copy(update={"command": name}) for row in measure(asked.data)]
        kept[name] = [row.model_dump() for row in rows]
        for row in rows:
            print(
                name, row.split, f"{row.measure.value:.3f} [{row.measure.low:.3f}, {row.measure.high:.3f}]", flush=True
            )
    RECORD.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    write_page([Row.model_validate(row) for rows in kept.values() for row in rows], PAGE)


if __name__ == "__main__":
    main()
