"""The train stage's function on a real rollout of the shipped model: what each setting does to the checkpoint."""

from __future__ import annotations

import errno
import shutil
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file

from grpo.config.renderer import RendererSettings
from grpo.config.training import TrainingSettings
from grpo.environments.support_desk.desk import SupportDesk
from grpo.errors import ConfigError, DataError, Diverged, NoEffect, NoLearningSignal, PolicyError, RatioError
from grpo.learner.checkpoints import read_state, save, save_base
from grpo.learner.metrics import UpdateMetrics
from grpo.learner.update import UpdateResult, mean_metrics, update
from grpo.learner.worker_group import WorkerLost
from grpo.policy.renderer import make_renderer
from grpo.policy.transformers.adapters import merge_adapters
from grpo.policy.transformers.dtype import Dtype
from grpo.policy.transformers.model import load, weights_hash
from grpo.policy.transformers.model_cache import model_cache
from grpo.tables import write_trajectories
from tests.checkpoint_weights import share_of_the_step, weights
from tests.grpo.learner.conftest import BASE, DeskRollout
from tests.waiting import until

SPACED = """
from grpo import Renderer

class SpacedRenderer(Renderer):
    def __init__(self, tokenizer, *, tools=(), lines: int = 0):
        super().__init__(tokenizer, tools=tools)
"""


def _update(desk: DeskRollout, target: Path, **arguments: Any) -> UpdateMetrics:
    """Metrics of an update that changes the policy."""
    result = _result(desk, target, **arguments)
    assert result.changed
    return result.metrics


def _result(
    desk: DeskRollout,
    target: Path,
    *,
    scored: Path | None = None,
    parent: Path | None = None,
    iteration: int = 0,
    renderer: RendererSettings | None = None,
    keep_parent: bool = False,
    **settings: object,
) -> UpdateResult:
    rate = {} if settings.get("algorithm") == "trpo" else {"learning_rate": 5e-4}
    plan = TrainingSettings(**{**rate, **settings})  # type: ignore[arg-type]
    return update(
        [scored or desk.scored],
        parent or desk.base,
        desk.base,
        target,
        plan,
        seed=0,
        iteration=iteration,
        base_artifact=BASE,
        renderer=renderer,
        keep_parent=keep_parent,
    )


def _rewrite(desk: DeskRollout, path: Path, **changes: object) -> Path:
    """The rollout with these fields of every trajectory changed."""
    rows = [replace(trajectory, **changes) for trajectory in desk.trajectories]  # type: ignore[arg-type]
    write_trajectories(path, rows, provenance={})
    return path


def test_activation_checkpointing_gives_the_same_weights(desk_rollout: DeskRollout, tmp_path: Path):
    """It changes the memory, not the result; dropout stays off."""
    _update(desk_rollout, tmp_path / "plain")
    _update(desk_rollout, tmp_path / "less", gradient_checkpointing=True)
    plain, less = weights(tmp_path / "plain"), weights(tmp_path / "less")
    assert share_of_the_step(plain, less, weights(desk_rollout.base)) < 3e-4


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_takes_nearly_the_same_step(desk_rollout: DeskRollout, tmp_path: Path, precision: str):
    """Off-policy by rounding alone: a mismatch that is measured and small, and a gradient within some per cent."""
    exact = _update(desk_rollout, tmp_path / "fp32")
    half = _update(desk_rollout, tmp_path / precision, precision=precision, importance_sampling_cap=2.0)
    assert 0 < half.mismatch_kl < 1e-3
    assert half.gradient_norm == pytest.approx(exact.gradient_norm, rel=0.05)
    assert half.gradient_norm != exact.gradient_norm
    saved = weights(tmp_path / precision)
    assert all(tensor.dtype == torch.float32 for tensor in saved.values())
    scale = read_state(tmp_path / precision).loss_scale
    assert (scale is not None) == (precision == "fp16")


def test_weights_in_bfloat16_take_nearly_the_same_step(desk_rollout: DeskRollout, tmp_path: Path):
    """Masters move as in float32, up to bfloat16's rounding of the gradient; the checkpoint holds them in float32.

    Rollouts are of the rounded weights then, and the mismatch is measured without another pass.
    """
    shutil.copytree(desk_rollout.base, tmp_path / "base")
    save_base(load(desk_rollout.base), tmp_path / "base", dtype="bfloat16")
    desk = replace(desk_rollout, base=tmp_path / "base")
    _update(desk_rollout, tmp_path / "fp32", importance_sampling_cap=2.0)
    metrics = _update(desk, tmp_path / "bf16", importance_sampling_cap=2.0)
    assert 1e-6 < metrics.mismatch_kl < 1e-2
    before, after, rounded = (
        torch.cat([weight.flatten() for weight in weights(folder).values()])
        for folder in (desk_rollout.base, tmp_path / "fp32", tmp_path / "bf16")
    )
    assert rounded.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(rounded - before, after - before, dim=0) > 0.8
    assert read_state(tmp_path / "bf16").dtype == "bfloat16"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_kept_parent_stays_as_it_is_and_the_update_is_the_same(
    desk_rollout: DeskRollout, tmp_path: Path, dtype: Dtype
):
    """Without `keep_parent` the update trains the cached policy in place, also with an importance-sampling cap."""
    shutil.copytree(desk_rollout.base, tmp_path / "base")
    save_base(load(desk_rollout.base), tmp_path / "base", dtype=dtype)
    desk, corrected = replace(desk_rollout, base=tmp_path / "base"), {"importance_sampling_cap": 2.0}
    _update(desk, tmp_path / "one", **corrected)
    version = read_state(tmp_path / "one").policy_hash
    sampled = _rewrite(desk, tmp_path / "later.parquet", policy_hash=version)
    later = {"scored": sampled, "parent": tmp_path / "one", "iteration": 1, "max_mismatch_kl": 1.0, **corrected}
    parent = model_cache.get(version, tmp_path / "one")
    held = parent.in_dtype(dtype).model
    _update(desk, tmp_path / "kept", keep_parent=True, **later)
    assert weights_hash(parent.model) == version
    assert model_cache.get(version, tmp_path / "one") is parent
    _update(desk, tmp_path / "trained", **later)
    assert weights_hash(parent.model) == read_state(tmp_path / "trained").policy_hash
    assert weights_hash(held) == weights_hash(load(tmp_path / "kept").in_dtype(dtype).model)
    assert read_state(tmp_path / "trained").policy_hash == read_state(tmp_path / "kept").policy_hash != version


def test_adapters_of_a_base_in_bfloat16_are_trained_and_resumed(desk_rollout: DeskRollout, tmp_path: Path):
    """The second update reads the checkpoint of the first from the disk; adapters are float32 there."""
    shutil.copytree(desk_rollout.base, tmp_path / "base")
    save_base(load(desk_rollout.base), tmp_path / "base", dtype="bfloat16")
    desk = replace(desk_rollout, base=tmp_path / "base")
    settings = {"lora": {"r": 4}, "importance_sampling_cap": 2.0}
    _update(desk, tmp_path / "one", **settings)
    weights = load_file(tmp_path / "one" / "adapter_model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    model_cache._policies.clear()
    sampled = _rewrite(desk, tmp_path / "later.parquet", policy_hash=read_state(tmp_path / "one").policy_hash)
    _update(desk, tmp_path / "two", scored=sampled, parent=tmp_path / "one", iteration=1, **settings)
    assert read_state(tmp_path / "two").dtype == "bfloat16"
    assert read_state(tmp_path / "two").policy_hash != read_state(tmp_path / "one").policy_hash


def test_the_mismatch_of_a_single_step_is_that_of_a_pass_of_its_own(desk_rollout: DeskRollout, tmp_path: Path):
    """One step takes its log-probabilities from the pass of the loss; two epochs compute them before."""
    one = _update(desk_rollout, tmp_path / "one", importance_sampling_cap=2.0)
    two = _update(desk_rollout, tmp_path / "two", importance_sampling_cap=2.0, epochs=2)
    assert one.mismatch_kl == pytest.approx(two.mismatch_kl, rel=0.2, abs=1e-12)


def test_later_minibatches_have_the_ratio_to_the_policy_before_the_update(desk_rollout: DeskRollout, tmp_path: Path):
    """One step starts from this policy, so its ratio is 1. Of four steps on the same tokens, three do not."""
    one = _update(desk_rollout, tmp_path / "one", importance_sampling_cap=2.0)
    four = _update(desk_rollout, tmp_path / "four", importance_sampling_cap=2.0, num_mini_batches=4)
    assert four.tokens == one.tokens
    assert one.ratio == pytest.approx(1, abs=1e-9)
    assert abs(four.ratio - 1) > 1e-5
    assert four.mismatch_kl == pytest.approx(one.mismatch_kl, abs=1e-7)


def test_sequences_that_the_sampler_would_not_have_written_are_masked(desk_rollout: DeskRollout, tmp_path: Path):
    """Log-probabilities moved by .05 in one trajectory of 24: beyond a bound of 1.04, within one of 1.1."""
    first, *others = desk_rollout.trajectories
    shifted = first.sampler_logprobs - np.float32(0.05) * first.loss_mask
    moved = replace(first, sampler_logprobs=shifted)
    scored = tmp_path / "moved.parquet"
    write_trajectories(scored, [moved, *others], provenance={})
    shares = [
        _update(
            desk_rollout,
            tmp_path / f"{bound}",
            scored=scored,
            importance_sampling_cap=2.0,
            importance_sampling_mask=bound,
        ).masked_share
        for bound in (1.04, 1.1)
    ]
    own, all_tokens = first.loss_mask.sum(), sum(t.loss_mask.sum() for t in desk_rollout.trajectories)
    assert shares == [pytest.approx(own / all_tokens, rel=0.5), 0.0]


def test_turns_are_compared_with_a_baseline_of_their_group_alone():
    """REINFORCE has the baseline of the whole batch. If it gets the baseline of a group, it takes credit by turn."""
    with pytest.raises(ValueError, match=r"Set baseline to group_mean or leave_one_out"):
        TrainingSettings(algorithm="reinforce", credit_assignment="turn")
    TrainingSettings(algorithm="reinforce", credit_assignment="turn", baseline="group_mean")


def test_masked_sequences_are_counted_in_every_step(desk_rollout: DeskRollout, tmp_path: Path):
    """In two steps as in one, and without the tokens that a threshold of the entropy leaves out.

    The threshold is computed over all tokens, so that uninformative groups count as well.
    """
    first, *others = desk_rollout.trajectories
    shifted = first.sampler_logprobs - np.float32(0.05) * first.loss_mask
    scored = tmp_path / "moved.parquet"
    write_trajectories(scored, [replace(first, sampler_logprobs=shifted), *others], provenance={})
    correction = {"scored": scored, "importance_sampling_cap": 2.0, "importance_sampling_mask": 1.04}
    one = _update(desk_rollout, tmp_path / "one", **correction).masked_share
    two = _update(desk_rollout, tmp_path / "two", epochs=2, **correction).masked_share
    few = _update(desk_rollout, tmp_path / "few", top_entropy_quantile=0.2, **correction).masked_share
    assert one > 0
    assert two == pytest.approx(one)
    own, all_tokens = first.loss_mask.sum(), sum(t.loss_mask.sum() for t in desk_rollout.trajectories)
    assert few == pytest.approx(own / all_tokens)


def test_metrics_of_an_update_are_means_over_its_tokens():
    """Entropy (1 · 4 + 3 · 0) / 4 = 1 over four tokens; the loss has one value a step, (2 + 6) / 2 = 4."""
    steps = [{"tokens": 1, "entropy": 4.0, "loss": 2.0}, {"tokens": 3, "entropy": 0.0, "loss": 6.0}]
    assert mean_metrics(steps) == {"entropy": 1.0, "loss": 4.0}


def test_a_skipped_update_has_no_loss_and_no_ratio(desk_rollout: DeskRollout, tmp_path: Path):
    """All rewards are equal: entropy and KL of the unchanged policy, and nothing that a step would have."""
    scored = _rewrite(desk_rollout, tmp_path / "equal.parquet", terminal_reward=0.5, turn_rewards=())
    result = _result(desk_rollout, tmp_path / "none", scored=scored, iteration=1)
    metrics = result.metrics
    assert not result.changed
    assert not (tmp_path / "none").exists()
    assert metrics.entropy > 0
    assert metrics.kl_to_base == pytest.approx(0, abs=1e-6)
    assert metrics.model_dump(exclude={"entropy", "kl_to_base"}, exclude_none=True) == {
        "informative_share": 0.0,
        "tokens": 0,
        "clipped_rewards": 0,
    }


def test_half_precision_without_a_correction_is_refused():
    """The ratio cannot be exactly 1, so importance sampling must correct for it."""
    with pytest.raises(ValueError, match=r"precision bf16 makes the learner's.*Set importance_sampling_cap"):
        TrainingSettings(precision="bf16")


def test_adapters_leave_the_base_bit_identical(desk_rollout: DeskRollout, tmp_path: Path):
    """Two updates with LoRA: the adapters change, and every weight of the base is unchanged."""
    _update(desk_rollout, tmp_path / "one", lora={"r": 4})
    policy = load(tmp_path / "one", base=desk_rollout.base)
    assert policy.hash == read_state(tmp_path / "one").policy_hash
    assert read_state(tmp_path / "one").base == BASE
    assert not (tmp_path / "one" / "model.safetensors").exists()
    base = load(desk_rollout.base).model.state_dict()
    adapted = {name.replace(".base_layer", ""): value for name, value in policy.model.state_dict().items()}
    assert all(torch.equal(value, adapted[name]) for name, value in base.items())
    trained = [value for name, value in adapted.items() if "lora_B" in name]
    assert any(value.abs().max() > 0 for value in trained)
    sizes = {True: 0, False: 0}
    for parameter in policy.model.parameters():
        sizes[parameter.requires_grad] += parameter.numel()
    assert 0 < sizes[True] < 0.05 * sizes[False]


def test_the_reference_of_an_adapted_policy_is_itself_without_adapters(desk_rollout: DeskRollout, tmp_path: Path):
    """The KL to the base is 0 at first and grows with the adapters; without a second model."""
    _update(desk_rollout, tmp_path / "one", lora={"r": 4}, learning_rate=1e-2)
    state = read_state(tmp_path / "one")
    moved = load(tmp_path / "one", base=desk_rollout.base)
    from grpo.learner.batch import to_samples
    from grpo.learner.logprobs import compute_logprobs, reference_kl

    samples = to_samples(desk_rollout.trajectories[:4])
    assert moved.hash == state.policy_hash
    assert reference_kl(moved.model, samples, max_tokens=4096) < 1e-9  # the base sampled these
    with torch.no_grad():
        now = compute_logprobs(moved.model, samples).logprobs.numpy()
    then = np.concatenate([sample.sampler_logprobs[sample.loss_mask] for sample in samples])
    assert np.abs(now - then).max() > 1e-2


def test_merged_adapters_give_the_same_logits_without_peft(desk_rollout: DeskRollout, tmp_path: Path):
    """The export has the base's layers, no adapters, and the adapted policy's log-probabilities."""
    _update(desk_rollout, tmp_path / "one", lora={"r": 4}, learning_rate=1e-2)
    adapted = load(tmp_path / "one", base=desk_rollout.base).model
    whole = merge_adapters(adapted)
    ids = torch.arange(5, 40)[None]
    with torch.no_grad():
        assert torch.allclose(whole(input_ids=ids).logits, adapted(input_ids=ids).logits, atol=1e-4)
    whole.save_pretrained(tmp_path / "export")
    assert (tmp_path / "export" / "model.safetensors").is_file()
    assert set(whole.state_dict()) == set(load(desk_rollout.base).model.state_dict())


def test_adapters_that_fit_no_layer_are_refused(desk_rollout: DeskRollout, tmp_path: Path):
    """The error names the layers of the model, before any step."""
    with pytest.raises(ConfigError, match=r"target_modules .*'nope'.* fits no layer.*q_proj"):
        _update(desk_rollout, tmp_path / "x", lora={"target_modules": ("nope",)})
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("knob", [{"r": 2}, {"lora_alpha": 4}, {"target_modules": ("q_proj",)}], ids=str)
def test_every_setting_of_the_adapters_changes_the_policy(
    desk_rollout: DeskRollout, tmp_path: Path, knob: dict[str, object]
):
    """Other adapters, another policy."""
    _update(desk_rollout, tmp_path / "plain", lora={"r": 4})
    _update(desk_rollout, tmp_path / "other", lora={"r": 4, **knob})
    assert read_state(tmp_path / "plain").policy_hash != read_state(tmp_path / "other").policy_hash


_DIES_BEFORE_THE_SUM = """
import os, signal, sys

def watch(frame, event, argument):
    if event == "call" and frame.f_code.co_name == "sum_gradients":
        os.kill(os.getpid(), signal.SIGKILL)

if os.environ.get("LOCAL_RANK") == "1":
    sys.setprofile(watch)
"""


def test_a_killed_worker_ends_the_update_and_leaves_the_checkpoint(
    desk_rollout: DeskRollout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """SIGKILL before the all-reduce, which the other waits for; an update starts from the same checkpoint again."""
    (tmp_path / "sitecustomize.py").write_text(_DIES_BEFORE_THE_SUM)
    with monkeypatch.context() as dying:
        dying.setenv("PYTHONPATH", str(tmp_path))
        with pytest.raises(WorkerLost, match=r"one of 2 training processes died.*the checkpoint .* is unchanged"):
            _update(desk_rollout, tmp_path / "x", processes=2)
    assert not (tmp_path / "x").exists()
    _update(desk_rollout, tmp_path / "x")
    assert read_state(tmp_path / "x").parent == read_state(desk_rollout.base).policy_hash


def test_an_update_has_a_timeout(desk_rollout: DeskRollout, tmp_path: Path):
    """Half a second is not enough to start; the message names the setting, and nothing was written."""
    with pytest.raises(WorkerLost, match=r"took longer than 0.5 s \(training.update_timeout_s\)"):
        _update(desk_rollout, tmp_path / "x", processes=2, update_timeout_s=0.5)
    assert not (tmp_path / "x").exists()


_STAYS = """
import os, pathlib, time

if "LOCAL_RANK" in os.environ:
    pathlib.Path(os.environ["STARTED"], str(os.getpid())).touch()
    time.sleep(600)
"""


class _Enough(Exception):
    """The update is given up."""


def test_a_timed_out_update_leaves_no_process(
    desk_rollout: DeskRollout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Both workers have started, each in a session of its own; neither trains beside a retry."""
    (tmp_path / "sitecustomize.py").write_text(_STAYS)
    started = tmp_path / "started"
    started.mkdir()

    def look(*_: object) -> None:
        if len(list(started.iterdir())) == 2:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise _Enough

    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("STARTED", str(started))
    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
    try:
        with pytest.raises(_Enough):
            _update(desk_rollout, tmp_path / "x", processes=2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    workers = {int(path.name) for path in started.iterdir()}
    assert len(workers) == 2

    def living() -> set[int]:
        """Workers of all updates of this machine. A zombie has no command line."""
        processes = psutil.process_iter(["cmdline"])
        return {process.pid for process in processes if "grpo.learner.worker" in (process.info["cmdline"] or ())}

    until("the end of the workers", lambda: not workers & living(), patience_s=240)


def test_a_policy_that_diverges_is_not_saved(desk_rollout: DeskRollout, tmp_path: Path):
    """A learning rate of 10 gives NaN: the error has the step, the loss and a remedy."""
    with pytest.raises(Diverged, match=r"step \d has loss .* Lower training.learning_rate"):
        _update(desk_rollout, tmp_path / "x", learning_rate=10.0, epochs=6, beta=0.1)
    assert not (tmp_path / "x").exists()


def test_a_loss_scale_that_overflows_is_halved_until_the_gradient_is_finite(
    desk_rollout: DeskRollout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The step of the update is taken, and the reduced scale is in the checkpoint."""
    monkeypatch.setattr("grpo.learner.performance._INITIAL_SCALE", 2.0**24)
    metrics = _update(desk_rollout, tmp_path / "x", precision="fp16", importance_sampling_cap=2.0)
    assert np.isfinite(metrics.gradient_norm)
    scale = read_state(tmp_path / "x").loss_scale
    assert scale is not None
    assert scale[0] < 2.0**24


def test_a_trust_region_without_a_step_is_an_error(desk_rollout: DeskRollout, tmp_path: Path):
    """The KL bound is too small for any step: the policy is unchanged, and the error names the setting."""
    with pytest.raises(NoLearningSignal, match="has no step within KL 1e-12"):
        _update(desk_rollout, tmp_path / "x", algorithm="trpo", trust_region={"max_kl": 1e-12, "line_search_steps": 1})


def test_a_rollout_of_the_previous_policy_needs_a_correction(desk_rollout: DeskRollout, tmp_path: Path):
    """One update behind: refused on-policy, corrected and measured off-policy."""
    _update(desk_rollout, tmp_path / "one")
    with pytest.raises(PolicyError, match="was sampled by policy"):
        _update(desk_rollout, tmp_path / "x", parent=tmp_path / "one", iteration=1)
    late = _update(desk_rollout, tmp_path / "two", parent=tmp_path / "one", iteration=1, importance_sampling_cap=2.0,
                   max_mismatch_kl=1.0)  # fmt: skip
    assert late.mismatch_kl > 1e-6


def test_a_sampler_too_far_from_the_policy_stops_the_run(desk_rollout: DeskRollout, tmp_path: Path):
    """Beyond max_mismatch_kl importance weights are not enough."""
    _update(desk_rollout, tmp_path / "one", learning_rate=3e-3)
    with pytest.raises(RatioError, match="nats per token from the policy"):
        _update(desk_rollout, tmp_path / "x", parent=tmp_path / "one", iteration=1, importance_sampling_cap=2.0,
                max_mismatch_kl=1e-5)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"policy_hash": "0123456789abcdef"}, PolicyError, "sampled by policy 0123456789abcdef"),
        ({"renderer_hash": "0123456789abcdef"}, PolicyError, "rendered with tokenizer and template 0123456789abcdef"),
        ({"terminal_reward": None}, DataError, "none of the 24 trajectories has a reward"),
        ({"temperature": 0.5}, RatioError, "importance ratio before the first step"),
    ],
    ids=lambda value: str(value),
)
def test_a_rollout_that_does_not_fit_the_checkpoint_is_refused(
    desk_rollout: DeskRollout, tmp_path: Path, changes: dict[str, object], error: type[Exception], message: str
):
    """Before any step, with the value and the place."""
    scored = _rewrite(desk_rollout, tmp_path / "scored.parquet", **changes)
    with pytest.raises(error, match=message):
        _update(desk_rollout, tmp_path / "x", scored=scored)
    assert not (tmp_path / "x").exists()


def test_rollouts_of_a_renderer_of_ones_own_are_trained_with_it_alone(
    desk_rollout: DeskRollout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The renderer has the hash that the rollout recorded, which leaves out tools. Another option is refused."""
    (tmp_path / "spaced_renderer.py").write_text(SPACED)
    monkeypatch.syspath_prepend(tmp_path)
    spaced, other = (
        RendererSettings(kind="python", object="spaced_renderer:SpacedRenderer", options={"lines": lines})
        for lines in (1, 2)
    )
    played = make_renderer(load(desk_rollout.base).tokenizer, tools=SupportDesk.tools, settings=spaced).hash
    scored = _rewrite(desk_rollout, tmp_path / "scored.parquet", renderer_hash=played)
    assert _update(desk_rollout, tmp_path / "spaced", scored=scored, renderer=spaced).tokens > 0
    for renderer in (None, other):
        with pytest.raises(PolicyError, match=f"rendered with tokenizer and template {played}"):
            _update(desk_rollout, tmp_path / "x", scored=scored, renderer=renderer)


def test_nan_log_probabilities_are_refused(desk_rollout: DeskRollout, tmp_path: Path):
    """A backend without log-probabilities stores NaN."""
    rows = [replace(t, sampler_logprobs=t.sampler_logprobs * np.float32(np.nan)) for t in desk_rollout.trajectories]
    write_trajectories(tmp_path / "scored.parquet", rows, provenance={})
    with pytest.raises(DataError, match="log-probabilities that are not finite"):
        _update(desk_rollout, tmp_path / "x", scored=tmp_path / "scored.parquet")


def test_a_group_of_one_is_refused(desk_rollout: DeskRollout, tmp_path: Path):
    """It has no baseline."""
    write_trajectories(tmp_path / "scored.parquet", desk_rollout.trajectories[:5], provenance={})
    with pytest.raises(DataError, match="a group needs at least 2"):
        _update(desk_rollout, tmp_path / "x", scored=tmp_path / "scored.parquet")


def test_a_learning_rate_of_zero_is_an_error(desk_rollout: DeskRollout, tmp_path: Path):
    """With adapters too, which are 0 at the start."""
    for options in ({}, {"lora": {"r": 2}}):
        with pytest.raises(NoEffect, match="changed no weight"):
            _update(desk_rollout, tmp_path / "x", learning_rate=0.0, **options)


def test_a_disk_that_is_full_ends_the_update_although_the_checkpoint_is_written_in_the_background(
    desk_rollout: DeskRollout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The policy that could not be written is not put into the model cache either."""
    put: list[object] = []
    threads = threading.active_count()

    def full(*_: object, **__: object) -> None:
        assert threading.current_thread() is not threading.main_thread()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("grpo.learner.update.save", full)
    monkeypatch.setattr(model_cache, "put", put.append)
    with pytest.raises(OSError, match="No space left on device"):
        _update(desk_rollout, tmp_path / "full")
    assert put == []
    assert threading.active_count() == threads


def test_adapters_are_written_when_the_kl_has_no_need_of_them(
    desk_rollout: DeskRollout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The KL to the base disables the adapters, which would be missing in what another thread writes."""
    in_main: list[bool] = []

    def note(*arguments: Any, **settings: Any) -> None:
        in_main.append(threading.current_thread() is threading.main_thread())
        save(*arguments, **settings)

    monkeypatch.setattr("grpo.learner.update.save", note)
    _update(desk_rollout, tmp_path / "adapted", lora={"r": 4})
    assert in_main == [True]


def test_critic_and_adapters_resume_from_the_checkpoint(desk_rollout: DeskRollout, tmp_path: Path):
    """ppo with LoRA over two updates: head and moments are in the checkpoint."""
    first = _update(desk_rollout, tmp_path / "one", algorithm="ppo", lora={"r": 4})
    assert (tmp_path / "one" / "critic.safetensors").is_file()
    state = read_state(tmp_path / "one")
    scored = _rewrite(desk_rollout, tmp_path / "scored.parquet", policy_hash=state.policy_hash)
    second = _update(desk_rollout, tmp_path / "two", scored=scored, parent=tmp_path / "one", iteration=1,
                     algorithm="ppo", lora={"r": 4}, ratio_tolerance=10.0)  # fmt: skip
    assert second.value_loss is not None
    assert first.value_loss is not None
    assert second.value_loss < first.value_loss


def test_activation_checkpointing_computes_each_layer_twice(
    desk_rollout: DeskRollout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Attention runs again in the backward pass."""
    from torch.nn import functional

    real, calls = functional.scaled_dot_product_attention, []

    def counted(*args: torch.Tensor, **options: object) -> torch.Tensor:
        calls.append(torch.is_grad_enabled())
        return real(*args, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", counted)
    _update(desk_rollout, tmp_path / "plain")
    plain = sum(calls)
    calls.clear()
    _update(desk_rollout, tmp_path / "less", gradient_checkpointing=True)
    assert sum(calls) > 1.5 * plain
