"""Jinja statements in front of a chat template that add the parts that it does not render.

    system       text of the system message in front of the first user message, with an empty line between them
    tools        a block in the system message: one JSON description per line, and the form of a call
    calls        <tool_call>{"name": …, "arguments": {…}}</tool_call> after the content of the assistant
    results      a user message in <tool_response> tags
    users        user messages in a row as one, with an empty line between them
    ids          ids of calls with their names, `functions.NAME:0`, if the template prints the id for the name (Kimi)
    arguments    arguments of a call as JSON text, if the template adds them to a text
    parts        contents as lists of parts, if the template reads images as well
    reasoning    reasoning in the content of a turn, if the prompt opens it and the template has no field for it

A checkpoint and an exported model have the template with these statements, so that everybody renders the same text.
"""

from __future__ import annotations

from typing import Literal, get_args

Form = Literal["ids", "arguments", "reasoning", "tools", "calls", "results", "users", "system", "parts"]
FORMS: tuple[Form, ...] = get_args(Form)
"""Forms in the order of their statements in front of a template."""

_STATEMENT = (
    "# Tools\\n\\nEach line describes a tool in JSON:\\n",
    "\\n\\nTo call a tool, write its name and arguments in this form alone:\\nEXAMPLE\\n"
    "You read its result before you go on. Without a call you speak to the user.",
)

_EACH = """\
{%- set rewritten = namespace(messages=[]) %}
{%- for message in messages %}
{BODY}
{%- endfor %}
{%- set messages = rewritten.messages %}
"""
_KEEP = "{%- set rewritten.messages = rewritten.messages + [message] %}"

_STATEMENTS: dict[Form, str] = {
    "ids": """\
{%- set numbered = namespace(count=0, ids=[]) %}
"""
    + _EACH.replace(
        "{BODY}",
        """\
{%- if message.tool_calls %}
{%- set numbered.ids = [] %}
{%- set texts = namespace(calls=[]) %}
{%- for call in message.tool_calls %}
{%- set name = 'functions.' ~ call.function.name ~ ':' ~ numbered.count %}
{%- set numbered.count = numbered.count + 1 %}
{%- set numbered.ids = numbered.ids + [{'given': call.id, 'id': name}] %}
{%- set texts.calls = texts.calls + [{'id': name, 'type': 'function', 'function': call.function}] %}
{%- endfor %}
{%- set rewritten.messages = rewritten.messages + [dict(message, tool_calls=texts.calls)] %}
{%- elif message.role == 'tool' and numbered.ids %}
{%- set answered = namespace(id=numbered.ids[0].id, rest=[]) %}
{%- for pair in numbered.ids if message.tool_call_id and pair.given == message.tool_call_id %}
{%- set answered.id = pair.id %}
{%- endfor %}
{%- for pair in numbered.ids if pair.id != answered.id %}
{%- set answered.rest = answered.rest + [pair] %}
{%- endfor %}
{%- set numbered.ids = answered.rest or numbered.ids %}
{%- set rewritten.messages = rewritten.messages + [dict(message, tool_call_id=answered.id)] %}
{%- else %}
"""
        + _KEEP
        + "\n{%- endif %}",
    ),
    "arguments": _EACH.replace(
        "{BODY}",
        """\
{%- if message.tool_calls %}
{%- set texts = namespace(calls=[]) %}
{%- for call in message.tool_calls %}
{%- set function = {'name': call.function.name, 'arguments': call.function.arguments | tojson} %}
{%- set texts.calls = texts.calls + [{'id': call.id, 'type': 'function', 'function': function}] %}
{%- endfor %}
{%- set turn = {'role': 'assistant', 'content': message.content, 'tool_calls': texts.calls} %}
{%- set rewritten.messages = rewritten.messages + [turn] %}
{%- else %}
"""
        + _KEEP
        + "\n{%- endif %}",
    ),
    "reasoning": _EACH.replace(
        "{BODY}",
        """\
{%- if message.role == 'assistant' %}
{%- set text = 'OPEN' + (message.reasoning_content or '') + '\\n</think>\\n\\n' + (message.content or '') %}
{%- if message.tool_calls %}
{%- set turn = {'role': 'assistant', 'content': text, 'tool_calls': message.tool_calls} %}
{%- else %}
{%- set turn = {'role': 'assistant', 'content': text} %}
{%- endif %}
{%- set rewritten.messages = rewritten.messages + [turn] %}
{%- else %}
"""
        + _KEEP
        + "\n{%- endif %}",
    ),
    "tools": f"""\
{{%- if tools %}}
{{%- set statement = '{_STATEMENT[0]}' + (tools | map('tojson') | join('\\n')) + '{_STATEMENT[1]}' %}}
{{%- if messages and messages[0].role == 'system' %}}
{{%- set opening = [{{'role': 'system', 'content': messages[0].content + '\\n\\n' + statement}}] %}}
{{%- set messages = opening + messages[1:] %}}
{{%- else %}}
{{%- set messages = [{{'role': 'system', 'content': statement}}] + messages %}}
{{%- endif %}}
{{%- set tools = none %}}
{{%- endif %}}
""",
    "calls": _EACH.replace(
        "{BODY}",
        """\
{%- if message.role == 'assistant' and message.tool_calls %}
{%- set written = namespace(text=message.content or '') %}
{%- for call in message.tool_calls %}
{%- set record = {'name': call.function.name, 'arguments': call.function.arguments} | tojson %}
{%- set gap = '\\n' if written.text else '' %}
{%- set written.text = written.text + gap + '<tool_call>\\n' + record + '\\n</tool_call>' %}
{%- endfor %}
{%- if message.reasoning_content %}
{%- set turn = {'role': 'assistant', 'content': written.text, 'reasoning_content': message.reasoning_content} %}
{%- else %}
{%- set turn = {'role': 'assistant', 'content': written.text} %}
{%- endif %}
{%- set rewritten.messages = rewritten.messages + [turn] %}
{%- else %}
"""
        + _KEEP
        + "\n{%- endif %}",
    ),
    "results": _EACH.replace(
        "{BODY}",
        """\
{%- if message.role == 'tool' %}
{%- set text = '<tool_response>\\n' + message.content + '\\n</tool_response>' %}
{%- set rewritten.messages = rewritten.messages + [{'role': 'user', 'content': text}] %}
{%- else %}
"""
        + _KEEP
        + "\n{%- endif %}",
    ),
    "users": _EACH.replace(
        "{BODY}",
        """\
{%- if message.role == 'user' and rewritten.messages and rewritten.messages[-1].role == 'user' %}
{%- set text = rewritten.messages[-1].content + '\\n\\n' + message.content %}
{%- set rewritten.messages = rewritten.messages[:-1] + [{'role': 'user', 'content': text}] %}
{%- else %}
"""
        + _KEEP
        + "\n{%- endif %}",
    ),
    "system": """\
{%- if messages and messages[0].role == 'system' %}
{%- if messages | length > 1 and messages[1].role == 'user' %}
{%- set opening = [{'role': 'user', 'content': messages[0].content + '\\n\\n' + messages[1].content}] %}
{%- set messages = opening + messages[2:] %}
{%- else %}
{%- set messages = [{'role': 'user', 'content': messages[0].content}] + messages[1:] %}
{%- endif %}
{%- endif %}
""",
    "parts": _EACH.replace(
        "{BODY}",
        """\
{%- set parts = [{'type': 'text', 'text': message.content}] %}
{%- if message.tool_calls %}
{%- set turn = {'role': message.role, 'content': parts, 'tool_calls': message.tool_calls} %}
{%- else %}
{%- set turn = {'role': message.role, 'content': parts} %}
{%- endif %}
{%- set rewritten.messages = rewritten.messages + [turn] %}""",
    ),
}


HERMES = '<tool_call>\n{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}\n</tool_call>'


def with_forms(source: str, forms: frozenset[Form], *, opening: str = "<think>\n", example: str = HERMES) -> str:
    """Template with statements for these forms in front.

    `opening` is the text that opens reasoning in a prompt. `example` is a rendered call with the name NAME.
    """
    statements = "".join(_STATEMENTS[form] for form in FORMS if form in forms)
    return statements.replace("OPEN", _quoted(opening)).replace("EXAMPLE", _quoted(example)) + source


def _quoted(text: str) -> str:
    """Escape a text for single quotes in a template."""
    return text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
