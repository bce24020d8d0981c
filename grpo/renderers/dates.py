"""Dates that templates print: the current date when a prompt is encoded, or a fixed date.

    template   Today is {{ strftime_now('%d %b %Y') }}.       with {#- date 2026-11-25 #}
    rendered   Today is ⸨@%d %b %Y⸩.                          Today is 25 Nov 2026.

Rendered text is cached by the shape of a conversation, so it has a placeholder instead of the current date.
"""

from __future__ import annotations

import json
import re
from datetime import datetime

from grpo.renderers.placeholders import dated
from grpo.renderers.template import ChatTemplate
from grpo.renderers.turn_boundaries import USER

_FIXED = re.compile(r"\{#-? *date +(\S+?) *-?#\}\n?")
"""Comment that fixes the date of a template, so that tokens stay the same if a run ends on another day."""
_FORM = re.compile(r"(['\"])([^'\"]*%[^'\"]*)\1")


def without_date(template: ChatTemplate) -> tuple[str, str]:
    """Source without the comment that fixes the date, and the statement that fixes it instead, "" without a comment.

    Raises `TemplateFailure` if the date in the comment is not a day.
    """
    comment = _FIXED.search(template.source)
    if comment is None:
        return template.source, ""
    try:
        day = datetime.strptime(comment[1], "%Y-%m-%d")
    except ValueError as error:
        fault = f"has a comment with the date {comment[1]!r}, which is not a day as in 2026-11-25"
        raise template.failure(fault) from error
    source = template.source[: comment.start()] + template.source[comment.end() :]
    return source, _statement(source, day)


def _statement(source: str, day: datetime) -> str:
    """Statement that defines `strftime_now` as this day, for each date format in the template."""
    forms = {form: day.strftime(form) for _, form in _FORM.findall(source)}
    return f"{{%- macro strftime_now(format) -%}}{{{{- {json.dumps(forms)}[format] -}}}}{{%- endmacro -%}}"


def check_date(template: ChatTemplate) -> None:
    """Refuse a template that computes with the date, because it only gets a placeholder for the date."""
    if "strftime_now" not in template.source:
        return
    day = datetime(2024, 12, 31, 23, 58, 59)
    fixed = template.with_source(_statement(template.source, day) + template.source)
    if dated(template.render((USER,), True), day) != fixed.render((USER,), True):
        raise template.failure(
            "computes with the date, for which a placeholder stands until a prompt is read. Fix the date by a comment "
            "in the template, {#- date 2026-11-25 #}"
        )
