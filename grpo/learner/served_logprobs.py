"""Log-probabilities of served turns, computed again with the weights that they claim.

If a server samples with other weights than it names, or if the log was changed, the ratios of a later update would
be wrong without any other sign.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from grpo.errors import AddressError, RatioError
from grpo.learner.batch import Sample
from grpo.learner.logprobs import with_proximal_logprobs
from grpo.log.folder import Problem
from grpo.log.logged_logprobs import Claim, ServedCheck, draw, read_claims
from grpo.log.records import Record
from grpo.policy.transformers.model import TransformersPolicy

TOLERANCE = 1e-4
"""Largest difference of a log-probability, in nats, that the order of sums explains in float32."""
_TURNS = 16
"""Turns that are computed between two comparisons."""
_MAX_TOKENS = 8192


def check_served(
    records: Iterable[Record | Problem], load: Callable[[str], TransformersPolicy], *, model: str, turns: int, seed: int
) -> ServedCheck:
    """Draw `turns` turns of a model, and compare their log-probabilities with the weights that `load` returns.

    `load` gets name and version, e.g. `support-desk/3`. If it raises `AddressError` for a version, its turns are
    counted as unchecked. Raises `RatioError` at the first turn with other weights, or with a difference above 1e-4.
    """
    claims, unchecked = read_claims(records, model)
    by_version: dict[str, list[Claim]] = defaultdict(list)
    for claim in draw(claims, turns, seed):
        by_version[claim.turn.model].append(claim)
    checked, tokens, differences = 0, 0, [0.0]
    for version, of_version in sorted(by_version.items()):
        try:
            policy = load(version)
        except AddressError:
            unchecked[f"{version} is not registered any more"] += len(of_version)
            continue
        for start in range(0, len(of_version), _TURNS):
            some = of_version[start : start + _TURNS]
            differences += _differences(policy, some, checked)
            checked += len(some)
            tokens += sum(int(claim.loss_mask.sum()) for claim in some)
    return ServedCheck(
        turns=checked, tokens=tokens, difference=max(differences), unchecked=dict(sorted(unchecked.items()))
    )


def _differences(policy: TransformersPolicy, claims: Sequence[Claim], checked: int) -> list[float]:
    """Largest difference of each turn. Raises `RatioError` for the first one that is too large."""
    for number, claim in enumerate(claims, checked + 1):
        if claim.turn.policy_hash != policy.hash:
            raise _refused(claim, number, f"has weights {claim.turn.policy_hash}, and the version {policy.hash}")
    computed = with_proximal_logprobs(
        policy.model, [_sample(claim) for claim in claims], precision="fp32", max_tokens=_MAX_TOKENS
    )
    differences = []
    for number, (claim, sample) in enumerate(zip(claims, computed, strict=True), checked + 1):
        assert sample.proximal_logprobs is not None
        distances = np.abs(sample.proximal_logprobs - claim.sampler_logprobs)[claim.loss_mask]
        difference = float(distances.max())
        if not difference <= TOLERANCE:
            raise _refused(
                claim,
                number,
                f"differs from its weights by {difference:.2g} nats in {(~(distances <= TOLERANCE)).sum()} of "
                f"{len(distances)} tokens (tolerance {TOLERANCE:g})",
            )
        differences.append(difference)
    return differences


def _refused(claim: Claim, number: int, fault: str) -> RatioError:
    turn = claim.turn
    return RatioError(
        f"turn {turn.id} of conversation {turn.conversation_id} claims {turn.model}, and {fault}, turn {number} of "
        "those checked, because other weights have sampled it or the log was changed. Restart grpo serve, and leave "
        "this log out of retraining"
    )


def _sample(claim: Claim) -> Sample:
    return Sample(
        token_ids=claim.token_ids,
        loss_mask=claim.loss_mask,
        sampler_logprobs=claim.sampler_logprobs,
        advantages=np.zeros_like(claim.sampler_logprobs),
        temperature=claim.turn.temperature,
        place=claim.turn.id,
    )
