"""Rollouts on inference servers: the protocol, one server, and the policy that spreads conversations over servers."""
