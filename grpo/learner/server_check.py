"""Check of the turns of rollout servers: their log-probabilities, computed again with the weights of this machine.

A server may have other weights than the version that it states, e.g. because of a defect of its loading. Its ratios
would then be wrong without any other sign until the learner compares them.
"""

from __future__ import annotations

import numpy as np

from grpo.learner.batch import Sample
from grpo.learner.logprobs import mismatch_kl, with_proximal_logprobs
from grpo.learner.served_logprobs import TOLERANCE
from grpo.policy.servers.protocol import TurnReply, TurnRequest
from grpo.policy.transformers.model import TransformersPolicy


def turn_fault(policy: TransformersPolicy, request: TurnRequest, reply: TurnReply) -> str | None:
    """Describe how the log-probabilities of a turn differ from the policy's, or return None if they do not.

    They may differ by `TOLERANCE` nats, because servers sum in another order. The policy is in float32.
    """
    given, count = len(request.token_ids), len(reply.token_ids)
    sampler_logprobs = np.asarray([*np.zeros(given), *reply.logprobs], np.float32)
    sample = Sample(
        token_ids=np.asarray([*request.token_ids, *reply.token_ids], np.int32),
        loss_mask=np.arange(given + count) >= given,
        sampler_logprobs=sampler_logprobs,
        advantages=np.zeros_like(sampler_logprobs),
        temperature=request.temperature,
        place="a turn of a server",
    )
    (computed,) = with_proximal_logprobs(policy.model, [sample], precision="fp32", max_tokens=given + count)
    assert computed.proximal_logprobs is not None
    distances = np.abs(computed.proximal_logprobs - sampler_logprobs)[sample.loss_mask]
    if (distances <= TOLERANCE).all():
        return None
    return (
        f"it says that it has weights {policy.hash}, and with these a turn of it has other log-probabilities: "
        f"{(~(distances <= TOLERANCE)).sum()} of {count} tokens differ by up to {distances.max():.2g} nats (tolerance "
        f"{TOLERANCE:g}), KL {mismatch_kl([computed]):.2g} nats per token. Restart it"
    )
