"""Serving of a policy: engine, OpenAI's API, log."""
