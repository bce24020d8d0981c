"""Parts of a conversation that a template does not render, and the template with forms added for them."""

from __future__ import annotations

from grpo.messages import THINK
from grpo.renderers.placeholders import MessageShape, common_prefix, slots_in
from grpo.renderers.reply_format import EXAMPLE
from grpo.renderers.template import ChatTemplate, TemplateFailure
from grpo.renderers.template_patches import HERMES, Form, with_forms
from grpo.renderers.turn_boundaries import CALL, RESULT, SYSTEM, USER


def missing_parts(
    template: ChatTemplate, required: frozenset[Form] = frozenset(), *, example: str = HERMES
) -> tuple[ChatTemplate, frozenset[Form]]:
    """Template with the `required` forms, and with a form for each part that a trial rendering leaves out."""
    forms = set(required)

    def complete() -> ChatTemplate:
        return template.with_source(with_forms(template.source, frozenset(forms), example=example))

    def renders(*shapes: MessageShape, keys: tuple[str, ...]) -> bool:
        return complete().renders(*shapes, keys=keys)

    called = ("1n0", "1a0_0")
    if not renders(USER, keys=("0c",)):
        forms.add("parts")
    if not renders(USER, CALL, keys=called):
        for form in ("ids", "arguments"):
            forms.add(form)
            if renders(USER, CALL, keys=called):
                break
            forms.discard(form)
        else:
            forms |= {"tools", "calls"}
    if not renders(USER, CALL, RESULT, keys=("2c",)) or not _marks_results(complete()):
        forms.add("results")
    if not renders(USER, USER, keys=("0c", "1c")) or not renders(USER, CALL, RESULT, USER, keys=("2c", "3c")):
        forms.add("users")
    if not renders(SYSTEM, USER, keys=("0c", "1c")):
        forms.add("system")
    return complete(), frozenset(forms)


def _marks_results(template: ChatTemplate) -> bool:
    """True if a word or tag marks a result. Without one it would not be clear whose text it is (Falcon)."""
    rendered = template.render((USER, CALL, RESULT), False)
    slot = next(slot for slot in slots_in(rendered) if slot.key == "2c")
    before = common_prefix(rendered, template.render((USER, CALL), False))
    return any(character.isalnum() for character in rendered[len(before) : slot.start])


def opens_after_result(template: ChatTemplate) -> bool:
    """Check that the prompt after a result opens the reasoning, like the prompt after a user's message."""
    return template.render((USER, CALL, RESULT), True).rstrip().endswith(THINK)


def states_tools(template: ChatTemplate) -> bool:
    """Check that a prompt names a tool and its parameters, both with and without a system message.

    A compact template may leave descriptions out.
    """
    for shapes in ((USER,), (SYSTEM, USER)):
        try:
            rendered = template.with_tools((EXAMPLE,)).render(shapes, True)
        except TemplateFailure:
            return False
        if not all(text in rendered for text in (EXAMPLE.name, *EXAMPLE.parameters["properties"])):
            return False
    return True
