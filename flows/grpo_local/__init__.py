"""Servers and workers of one machine: start, health checks, supervision, shutdown."""
