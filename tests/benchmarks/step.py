"""One GRPO step against TRL's on the same batch: seconds and peak memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from transformers import PreTrainedModel

from grpo.algorithms.reductions import Denominators
from grpo.config.training import TrainingSettings
from grpo.learner.batch import Sample
from grpo.learner.learner import Learner
from tests.benchmarks.against_trl import make_trainer, plain_model, trl_inputs, trl_step
from tests.benchmarks.desk import MODEL, desk_policy, quickstart, step_samples
from tests.benchmarks.measure import apart, in_turn, peak_growth_mib, seconds
from tests.benchmarks.page import Findings, Table, Versus

ROWS = (8, 16, 32, 64)
"""Episodes in one of TRL's forward passes; the fastest is taken."""
TRIES, REPEATS = 2, 5


def our_step(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    settings: TrainingSettings,
    *,
    master: PreTrainedModel | None = None,
    on_policy: bool = True,
) -> Callable[[], float]:
    """A step of the learner that may be repeated, since its learning rate is 0; it returns the gradient's norm."""
    learner = Learner(model, settings.model_copy(update={"learning_rate": 0.0}), master=master)
    of = Denominators(
        sequences=len(samples),
        tokens=sum(int(sample.loss_mask.sum()) for sample in samples),
        normalizer=settings.length_normalizer,
    )
    return lambda: learner.step(samples, of, on_policy=on_policy)["gradient_norm"]


def their_step(samples: Sequence[Sample], rows: int, *, checkpointing: bool) -> Callable[[], float]:
    """The same step of TRL's trainer."""
    model, tokenizer = plain_model(MODEL)
    trainer = make_trainer(model, tokenizer, rows=rows, checkpointing=checkpointing)
    inputs = trl_inputs(samples, device=model.device)
    return lambda: trl_step(trainer, inputs, rows=rows)


def our_memory(samples: Sequence[Sample], settings: TrainingSettings) -> float:
    """Peak growth in MiB of a first step in this process."""
    return peak_growth_mib(our_step(desk_policy().model, samples, settings))


def their_memory(samples: Sequence[Sample], rows: int, *, checkpointing: bool) -> float:
    """The same of TRL's."""
    return peak_growth_mib(their_step(samples, rows, checkpointing=checkpointing))


def measure() -> Findings:
    """Both sides in turn, TRL in its fastest setting; then each side's memory in a process of its own."""
    settings = quickstart().training
    policy = desk_policy()
    samples = step_samples(policy, quickstart())
    mine = our_step(policy.model, samples, settings)
    theirs = {rows: their_step(samples, rows, checkpointing=False) for rows in ROWS if len(samples) % rows == 0}
    _agree(mine, theirs)
    tried = in_turn({rows: lambda step=step: seconds(step) for rows, step in theirs.items()}, repeats=TRIES)
    rows = min(tried, key=lambda count: tried[count])
    usual = their_step(samples, ROWS[0], checkpointing=True)
    thrifty = settings.model_copy(update={"gradient_checkpointing": True, "microbatch_tokens": 2048})
    spared = our_step(desk_policy().model, samples, thrifty)
    sides = {"ours": mine, "ours, thrifty": spared, "TRL": theirs[rows], "TRL, default": usual}
    time = in_turn({name: lambda step=step: seconds(step) for name, step in sides.items()}, repeats=REPEATS)
    memory = {
        "ours": apart(our_memory, samples, settings),
        "ours, thrifty": apart(our_memory, samples, thrifty),
        "TRL": apart(their_memory, samples, rows, checkpointing=False),
        "TRL, default": apart(their_memory, samples, ROWS[0], checkpointing=True),
    }
    told = {
        "ours": f"ours, as the quickstart: {settings.microbatch_tokens} tokens a pass",
        "ours, thrifty": f"ours, {thrifty.microbatch_tokens} tokens a pass, activations computed twice",
        "TRL": f"TRL, its fastest: {rows} episodes a pass, activations kept",
        "TRL, default": f"TRL, its default: {ROWS[0]} episodes a pass, activations computed twice",
    }
    table = tuple((told[name], f"{time[name]:.3f}", f"{memory[name]:,.0f}") for name in told)
    tokens = sum(len(sample.token_ids) for sample in samples)
    return Findings(
        title="One GRPO step",
        text=(
            f"Forward, backward and optimizer step on {len(samples)} real desk episodes in groups of eight, "
            f"{tokens:,} tokens, float32, the shipped model; both compute the same gradient. Seconds are medians "
            f"of {REPEATS}, runs alternate. Memory is the most that the process held during its first step above "
            "what it held before, in a process of its own."
        ),
        tables=(Table(head=("side", "s", "peak MiB"), rows=table),),
        gist=(
            Versus(
                measure="one GRPO step, 64 episodes",
                ours=f"{time['ours']:.2f} s",
                against=f"TRL {time['TRL']:.2f} s",
                ratio=time["TRL"] / time["ours"],
                bound=3,
            ),
            Versus(
                measure="peak memory of the step",
                ours=f"{memory['ours']:,.0f} MiB",
                against=f"TRL {memory['TRL']:,.0f} MiB",
                ratio=memory["TRL"] / memory["ours"],
                bound=2,
            ),
        ),
    )


def _agree(mine: Callable[[], float], theirs: dict[int, Callable[[], float]]) -> None:
    """Both sides must do the same work: the norm of the gradient tells. The first step warms both up."""
    norms = {"ours": mine(), **{f"TRL, {rows} rows": step() for rows, step in theirs.items()}}
    if max(norms.values()) - min(norms.values()) > 1e-4 * max(norms.values()):
        raise SystemExit(f"the sides do not take the same step, their gradients' norms differ: {norms}")
