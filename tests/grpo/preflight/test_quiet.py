"""Level of the project's loggers during checks."""

from __future__ import annotations

import logging

import pytest

from grpo.preflight.quiet import LOGGER, errors_only


def test_overlapping_checks_restore_the_level(monkeypatch: pytest.MonkeyPatch):
    """The first ends while the second plays: it stays silent until the second ends, and is not silent afterwards."""
    monkeypatch.setattr(LOGGER, "level", logging.INFO)
    first, second = errors_only(), errors_only()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert LOGGER.level == logging.ERROR
    second.__exit__(None, None, None)
    assert LOGGER.level == logging.INFO


def test_a_check_that_raises_restores_the_level(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(LOGGER, "level", logging.INFO)
    with pytest.raises(ValueError, match="of an environment"), errors_only():
        raise ValueError("of an environment")
    assert LOGGER.level == logging.INFO
