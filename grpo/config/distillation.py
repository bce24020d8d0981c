"""Settings of on-policy distillation: a teacher's distribution for each token that the policy has sampled."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from grpo.config.base import AppliesWhen, IgnoredWhen, ModelAddress, Settings

PROMPT, CONTEXT = "prompt", "privileged_context"
"""Placeholders of `teacher_prompt_template`."""
_PLACEHOLDER = re.compile(r"\{(\w*)\}")
PrivilegedContext = Literal["outcome", "responses"]


class DistillationSettings(Settings):
    """On-policy distillation (GKD, arXiv 2306.13649) next to the policy gradient, with TRL's names.

    The policy samples the episodes, and the loss is the exact KL(policy ‖ teacher) over the vocabulary at each of its
    tokens. The teacher is another model with the same tokenizer, or the policy itself, which reads a hint that the
    policy does not see while it samples (SDFT, arXiv 2601.19897; SDPO, arXiv 2601.20802).
    """

    distillation_weight: float = Field(default=1.0, gt=0, le=1)
    """Weight of the distillation in the loss of a token. The policy gradient has 1 minus this weight, so that 1 trains
    on the teacher only, also where all rewards of a group are equal."""
    teacher_model_name_or_path: ModelAddress | None = None
    """Address of the teacher. None: the policy is its own teacher, and needs `privileged_context`."""
    teacher_model_kind: Annotated[Literal["base", "live"], IgnoredWhen("teacher_model_name_or_path")] = "base"
    """Weights of a policy that is its own teacher. base: the weights that the training starts from. live: the weights
    of the policy before each step."""
    privileged_context: tuple[PrivilegedContext, ...] = ()
    """Parts of a scenario's `expected` that only the teacher reads. outcome: calls, state, facts and assertions.
    responses: the reference replies, e.g. a demonstration or a corrected reply. Episodes of a scenario that has none of
    these parts have no distillation."""
    teacher_prompt_template: Annotated[str, AppliesWhen("privileged_context")] = "{prompt}\n\n{privileged_context}"
    """The user's last message before the first reply, as the teacher reads it."""

    @field_validator("teacher_prompt_template")
    @classmethod
    def _check_placeholders(cls, template: str) -> str:
        if sorted(_PLACEHOLDER.findall(template)) != [CONTEXT, PROMPT]:
            raise ValueError(
                f"teacher_prompt_template {template!r} needs {{prompt}} and {{privileged_context}}, each once, and no "
                "other name in braces"
            )
        return template

    @model_validator(mode="after")
    def _the_teacher_knows_more(self) -> Self:
        if self.teacher_model_name_or_path is None and not self.privileged_context:
            raise ValueError(
                "a policy that is its own teacher needs a hint. Set privileged_context, for example [outcome], or "
                "teacher_model_name_or_path; training.beta alone keeps a policy near its start"
            )
        if len(set(self.privileged_context)) < len(self.privileged_context):
            raise ValueError(f"privileged_context {list(self.privileged_context)} names a part twice. Leave one out")
        return self

    def teacher_message(self, prompt: str, hint: str) -> str:
        """The template with the user's message and the hint. Placeholders in these texts stay as they are."""
        texts = {PROMPT: prompt, CONTEXT: hint}
        return _PLACEHOLDER.sub(lambda match: texts[match[1]], self.teacher_prompt_template)
