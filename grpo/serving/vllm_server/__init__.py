"""Rollouts on `vllm serve`: the routes of a rollout server, the policy version in vLLM's engine, and its worker."""
