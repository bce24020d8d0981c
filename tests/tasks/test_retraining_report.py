from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel

from grpo.retraining.mixture import MixtureCounts, OriginShare
from grpo.retraining.reports import RetrainingReport
from grpo_tasks.retraining_report import mixture_rows


def test_the_report_has_the_shares_of_keys_and_users():
    """And what each bound left out, beside the numbers of both splits."""
    key = OriginShare(name="3fa1c0d2e4b6", train=3, heldout=5, train_share=3 / 12, heldout_share=5 / 20)
    user = OriginShare(name="77aa", train=0, heldout=1, train_share=0.0, heldout_share=1 / 20)
    counts = MixtureCounts(
        base_train=9,
        conversations_train=3,
        base_heldout=15,
        conversations_heldout=5,
        left_out={"heldout, key_fraction": 497},
        key_shares=(key,),
        user_shares=(user,),
    )
    assert {str(row["what"]): row["count"] for row in mixture_rows(counts)} == {
        "training split, base scenarios": 9,
        "training split, conversations": 3,
        "held-out split, base scenarios": 15,
        "held-out split, conversations": 5,
        "left out of heldout, key_fraction": 497,
        "conversations of key 3fa1c0d2e4b6: 25.0% of the training split, 25.0% of the held-out split": 8,
        "conversations of user 77aa: 0.0% of the training split, 5.0% of the held-out split": 1,
    }


def test_no_model_of_the_report_has_a_field_that_a_dictionary_is_made_by():
    """Prefect reads a task's parameters by `dict(model)`, which calls `keys` where a model has it."""
    pending: list[Any] = [RetrainingReport]
    for model in pending:  # grows
        assert "keys" not in model.model_fields, model
        types = [field.annotation for field in model.model_fields.values()]
        for of in types:  # grows
            types += get_args(of)
            if isinstance(of, type) and issubclass(of, BaseModel) and of not in pending:
                pending.append(of)
    assert MixtureCounts in pending
