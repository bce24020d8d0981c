"""Check that a rollout server answers and takes rollouts with the key, as the first rollout needs it.

One server is enough, because a run goes on with the servers that it has, and tries the others with each turn.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import httpx

from grpo.config.rollout import StartedServers
from grpo.errors import PolicyError
from grpo.http_client import ReplyRefused, get
from grpo.policy.servers.protocol import WEIGHTS
from grpo.preflight.facts import Facts

_TIMEOUT_S = 3.0
_NO_ROLLOUTS = "it takes no rollouts. Start it with grpo serve MODEL --set rollouts={}"


def rollout_servers(facts: Facts) -> Iterator[Exception]:
    """Ask the listed servers, unless another machine than this one rolls out, because it may reach other servers."""
    rollout, sent = facts.given.rollout, facts.given.compute.gpu_stages
    is_elsewhere = rollout.dask_address or rollout.ray_address or (sent is not None and "rollout" in sent.stages)
    if rollout.backend != "servers" or isinstance(rollout.servers, StartedServers) or is_elsewhere:
        return
    from grpo.policy.servers.policy import KEY, server_key  # imports transformers

    if not os.environ.get(KEY):  # reported by the check of the backend
        return
    headers = {"Authorization": f"Bearer {server_key()}"}
    away, refused = [], []
    for url in rollout.servers:
        try:
            status = get(f"{url}{WEIGHTS}", headers=headers, seconds=_TIMEOUT_S).status_code
        except ReplyRefused as error:
            refused.append(f"rollout server {url}: {error}")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            away.append(f"rollout server {url}: it cannot be reached ({type(error).__name__})")
        else:
            if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
                refused.append(f"rollout server {url}: it refuses the key in {KEY} (HTTP {status})")
            elif status == httpx.codes.NOT_FOUND:
                refused.append(f"rollout server {url}: {_NO_ROLLOUTS}")
            else:
                return
    faults = "; ".join([*refused, *away])
    if refused:
        yield PolicyError(f"no rollout server can be used: {faults}. Correct rollout.servers or the servers")
    else:
        yield ConnectionError(f"no rollout server answers: {faults}. Start them, or correct rollout.servers")
