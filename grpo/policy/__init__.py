"""Policies: one protocol, with inference backends in this process, in vLLM and behind servers."""
