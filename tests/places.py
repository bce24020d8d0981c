"""Paths of files that tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INTERNALS = ROOT / "docs" / "internals"
"""Pages on how the project is made and measured; most are written by programs."""
DESK_MODEL = ROOT / "data" / "models" / "desk_clerk"
DESK_SCENARIOS = ROOT / "data" / "scenarios" / "support_desk.jsonl"
PUBLISHED = ROOT.parent / "shared" / "data"
"""Data sets that others publish, beside the project; tests that need one are skipped where it is not."""

LONGEST = (
    *(
        f"tests/e2e/test_{name}.py"
        for name in ("chaos", "page_shell", "stack", "identity", "own_objects", "remote", "retrain", "tuning")
    ),
    *(f"tests/e2e/test_{name}.py" for name in ("registry_move", "postgres", "wheel", "registry", "kill")),
    *(
        "tests/tasks/execution/test_task_runners.py",
        "tests/flows/test_train.py",
        "tests/flows/local/test_automations.py",
        "tests/grpo/serving/test_app.py",
        "tests/grpo/retraining/test_flood.py",
        "tests/grpo/learner/test_nodes.py",
        "tests/flows/test_retention.py",
        "tests/docs/test_configs.py",
        "tests/flows/test_model_addresses.py",
        "tests/flows/test_wrong_usage.py",
        "tests/flows/test_iterations.py",
        "tests/grpo/learner/test_worker.py",
        "tests/grpo/learner/test_two_processes.py",
        "tests/flows/cli/test_servers.py",
        "tests/grpo/learner/test_update.py",
        "tests/grpo/rewards/learned/test_safety.py",
        "tests/grpo/policy/transformers/test_families.py",
        "tests/grpo/learner/test_learning.py",
        "tests/grpo/serving/test_registered.py",
        "tests/grpo/serving/test_engine.py",
        "tests/flows/test_erasure.py",
        "tests/docs/test_commands.py",
        "tests/docs/test_examples.py",
        "tests/test_regular_expressions.py",
        "tests/test_house.py",
        "tests/test_features.py",
    ),
)
"""Files of half a minute and more: a worker that begins one last keeps all others waiting."""
