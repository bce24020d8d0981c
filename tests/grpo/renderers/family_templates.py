"""Chat templates in the forms of families that no installed package ships, each reduced to the tokens that it writes.

The tokens, the marks of calls and results, and the treatment of reasoning are those of the published template. Prose,
pictures, documents and dates are left out. `python -m tests.models.chat_formats FOLDER` reads the published files.
"""

from __future__ import annotations

from dataclasses import dataclass

from grpo.messages import Tool
from grpo.renderers.chat_template import Renderer
from tests.grpo.renderers import published

AS_GENERATED = "{#- turns as generated #}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A template, the token that ends a turn, and texts of turns as the family writes them.

    The turns have calls of `look_up`, with the order "12" and the number 3, with the order "7", or without arguments.
    """

    template: str
    end: str
    one: str
    two: str
    empty: str
    beside: str | None
    """A turn with the text "I look." and the first call. None if the template renders only one of the two."""
    malformed: str
    form: str
    added: tuple[str, ...] = ()
    """Parts in a generic form."""

    def renderer(self, *tools: Tool) -> Renderer:
        """Renderer with these tools."""
        return Renderer(published.tokenizer(self.template, end=self.end), tools=tools)


_ORDER, _SECOND = '{"order": "12", "most": 3}', '{"order": "7"}'

GRANITE_4 = Family(
    template="""\
{%- set open, close = '<|start_of_role|>', '<|end_of_role|>' %}
{%- if tools or messages[0].role == 'system' %}{{ open + 'system' + close }}
{%- if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
{%- if tools %}{{ '\\n<tools>' }}{% for tool in tools %}{{ '\\n' + tool | tojson }}{% endfor %}
{{- '\\n</tools>' }}{% endif %}{{ '<|end_of_text|>\\n' }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
{{- open + m.role + close + m.content + '<|end_of_text|>\\n' }}
{%- elif m.role == 'assistant' %}{{ open + 'assistant' + close + m.content }}
{%- for c in m.tool_calls or [] %}{{ '\\n' if not loop.first or m.content else '' }}
{{- '<tool_call>\\n{"name": "' + c.function.name + '", "arguments": ' }}
{{- c.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}{{ '<|end_of_text|>\\n' }}
{%- elif m.role == 'tool' %}
{%- if messages[loop.index0 - 1].role != 'tool' %}{{ open + 'user' + close }}{% endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|end_of_text|>\\n' }}{% endif %}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}{{ open + 'assistant' + close }}{% endif %}""",
    end="<|end_of_text|>",
    one=f'<tool_call>\n{{"name": "look_up", "arguments": {_ORDER}}}\n</tool_call>',
    two=(
        f'<tool_call>\n{{"name": "look_up", "arguments": {_ORDER}}}\n</tool_call>\n'
        f'<tool_call>\n{{"name": "look_up", "arguments": {_SECOND}}}\n</tool_call>'
    ),
    empty='<tool_call>\n{"name": "look_up", "arguments": {}}\n</tool_call>',
    beside=f'I look.\n<tool_call>\n{{"name": "look_up", "arguments": {_ORDER}}}\n</tool_call>',
    malformed='<tool_call>\n{"name": "look_up", "arguments": {"order": \n</tool_call>',
    form="JSON",
)
MINIMAX_M2 = Family(
    template=AS_GENERATED
    + """\
{{- ']~!b[]~b]system\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content }}{% else %}{{ 'You are helpful.' }}{% endif %}
{%- if tools %}{{ '\\n<tools>\\n' }}{% for t in tools %}{{ '<tool>' + t.function | tojson + '</tool>\\n' }}{% endfor %}
{{- '</tools>' }}{% endif %}{{ '[e~[\\n' }}
{%- set last = namespace(user=-1) %}
{%- set chat = messages[1:] if messages[0].role == 'system' else messages %}
{%- for m in chat %}{% if m.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}
{%- for m in chat %}
{%- if m.role == 'assistant' %}{{ ']~b]ai\\n' }}
{%- if m.reasoning_content and loop.index0 > last.user %}{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif %}{{ m.content }}
{%- if m.tool_calls %}{{ '\\n<minimax:tool_call>\\n' }}
{%- for c in m.tool_calls %}{{ '<invoke name="' + c.function.name + '">\\n' }}
{%- for key, value in c.function.arguments.items() %}{{ '<parameter name="' + key + '">' }}
{{- value if value is string else value | tojson }}{{ '</parameter>\\n' }}{% endfor %}{{ '</invoke>\\n' }}{% endfor %}
{{- '</minimax:tool_call>' }}{% endif %}{{ '[e~[\\n' }}
{%- elif m.role == 'tool' %}
{%- if loop.previtem is not defined or loop.previtem.role != 'tool' %}{{ ']~b]tool' }}{% endif %}
{{- '\\n<response>' + m.content + '</response>' }}
{%- if loop.nextitem is not defined or loop.nextitem.role != 'tool' %}{{ '[e~[\\n' }}{% endif %}
{%- else %}{{ ']~b]' + m.role + '\\n' + m.content + '[e~[\\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ ']~b]ai\\n<think>\\n' }}{% endif %}""",
    end="[e~[",
    one=(
        '<minimax:tool_call>\n<invoke name="look_up">\n<parameter name="order">12</parameter>\n'
        '<parameter name="most">3</parameter>\n</invoke>\n</minimax:tool_call>'
    ),
    two=(
        '<minimax:tool_call>\n<invoke name="look_up">\n<parameter name="order">12</parameter>\n'
        '<parameter name="most">3</parameter>\n</invoke>\n<invoke name="look_up">\n'
        '<parameter name="order">7</parameter>\n</invoke>\n</minimax:tool_call>'
    ),
    empty='<minimax:tool_call>\n<invoke name="look_up">\n</invoke>\n</minimax:tool_call>',
    beside=(
        'I look.\n<minimax:tool_call>\n<invoke name="look_up">\n<parameter name="order">12</parameter>\n'
        '<parameter name="most">3</parameter>\n</invoke>\n</minimax:tool_call>'
    ),
    malformed=(
        '<minimax:tool_call>\n<invoke name="look_up">\n<parameter name="order">12\n</invoke>\n</minimax:tool_call>'
    ),
    form="an element for each argument",
)
COMMAND = Family(
    template="""\
{%- set open, close = '<|START_OF_TURN_TOKEN|>', '<|END_OF_TURN_TOKEN|>' %}
{%- set count = namespace(calls=0, numbers={}) %}
{{- open + '<|SYSTEM_TOKEN|># System' }}
{%- if tools %}{{ '\\n```json\\n[' }}{% for tool in tools %}
{{- '\\n{"name": "' + tool.function.name + '", "description": "' + tool.function.description + '", "parameters": ' }}
{{- tool.function.parameters | tojson + '}' }}{% endfor %}{{ '\\n]\\n```' }}{% endif %}
{%- if messages[0].role == 'system' %}{{ '\\n' + messages[0].content }}{% endif %}{{ close }}
{%- for m in messages %}
{%- if m.role == 'system' and not loop.first %}{{ open + '<|SYSTEM_TOKEN|>' + m.content + close }}
{%- elif m.role == 'user' %}{{ open + '<|USER_TOKEN|>' + m.content + close }}
{%- elif m.role == 'assistant' %}{{ open + '<|CHATBOT_TOKEN|>' }}
{%- if m.tool_calls %}
{{- '<|START_THINKING|>' + (m.tool_plan or '') + '<|END_THINKING|><|START_ACTION|>[\\n' }}
{%- for c in m.tool_calls %}{{ '    {"tool_call_id": "' + count.calls | string + '", "tool_name": "' }}
{{- c.function.name + '", "parameters": ' + c.function.arguments | tojson + '}' }}
{{- '' if loop.last else ',' }}{{ '\\n' }}
{%- set count.numbers = dict(count.numbers, **{c.id: count.calls | string}) %}
{%- set count.calls = count.calls + 1 %}{% endfor %}{{ ']<|END_ACTION|>' + close }}
{%- else %}{{ '<|START_RESPONSE|>' + m.content + '<|END_RESPONSE|>' + close }}{% endif %}
{%- elif m.role == 'tool' %}
{%- if loop.previtem.role != 'tool' %}{{ open + '<|SYSTEM_TOKEN|><|START_TOOL_RESULT|>[\\n' }}{% endif %}
{{- '    {"tool_call_id": "' + count.numbers[m.tool_call_id] + '", "results": {"0": ' + m.content | tojson + '}}' }}
{%- if loop.nextitem is defined and loop.nextitem.role == 'tool' %}{{ ',\\n' }}
{%- else %}{{ '\\n]<|END_TOOL_RESULT|>' + close }}{% endif %}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}{{ open + '<|CHATBOT_TOKEN|>' }}{% endif %}""",
    end="<|END_OF_TURN_TOKEN|>",
    one=(
        f'<|START_ACTION|>[\n    {{"tool_call_id": "0", "tool_name": "look_up", "parameters": {_ORDER}}}\n]'
        "<|END_ACTION|>"
    ),
    two=(
        f'<|START_ACTION|>[\n    {{"tool_call_id": "0", "tool_name": "look_up", "parameters": {_ORDER}}},\n'
        f'    {{"tool_call_id": "1", "tool_name": "look_up", "parameters": {_SECOND}}}\n]<|END_ACTION|>'
    ),
    empty='<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "look_up", "parameters": {}}\n]<|END_ACTION|>',
    beside=None,
    malformed='<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "look_up"\n]<|END_ACTION|>',
    form="JSON",
)
KIMI_K2 = Family(
    template="""\
{%- if tools %}{{ '<|im_system|>tool_declare<|im_middle|>' + tools | tojson + '<|im_end|>' }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'user' %}{{ '<|im_user|>user<|im_middle|>' }}
{%- elif m.role == 'assistant' %}{{ '<|im_assistant|>assistant<|im_middle|>' }}
{%- else %}{{ '<|im_system|>' + m.role + '<|im_middle|>' }}{% endif %}
{%- if m.role == 'tool' %}{{ '## Return of ' + m.tool_call_id + '\\n' }}{% endif %}{{ m.content }}
{%- if m.tool_calls %}{{ '<|tool_calls_section_begin|>' }}
{%- for c in m.tool_calls %}{{ '<|tool_call_begin|>' + c.id + '<|tool_call_argument_begin|>' }}
{{- c.function.arguments | tojson + '<|tool_call_end|>' }}{% endfor %}{{ '<|tool_calls_section_end|>' }}{% endif %}
{{- '<|im_end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_assistant|>assistant<|im_middle|>' }}{% endif %}""",
    end="<|im_end|>",
    one=(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.look_up:0<|tool_call_argument_begin|>"
        f"{_ORDER}<|tool_call_end|><|tool_calls_section_end|>"
    ),
    two=(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.look_up:0<|tool_call_argument_begin|>"
        f"{_ORDER}<|tool_call_end|><|tool_call_begin|>functions.look_up:1<|tool_call_argument_begin|>"
        f"{_SECOND}<|tool_call_end|><|tool_calls_section_end|>"
    ),
    empty=(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.look_up:0<|tool_call_argument_begin|>"
        "{}<|tool_call_end|><|tool_calls_section_end|>"
    ),
    beside=(
        "I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.look_up:0<|tool_call_argument_begin|>"
        f"{_ORDER}<|tool_call_end|><|tool_calls_section_end|>"
    ),
    malformed=(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.look_up:0<|tool_call_argument_begin|>"
        '{"order": <|tool_call_end|><|tool_calls_section_end|>'
    ),
    form="a name and JSON",
    added=("ids",),
)
DEEPSEEK_V3_1 = Family(
    template=AS_GENERATED
    + """\
{%- set ns = namespace(system='', asked=false) %}
{%- for m in messages if m.role == 'system' %}{% set ns.system = ns.system + m.content %}{% endfor %}
{{- '<｜begin▁of▁sentence｜>' + ns.system }}
{%- for m in messages %}
{%- if m.role == 'user' %}{{ '<｜User｜>' + m.content }}{% set ns.asked = true %}
{%- elif m.role == 'assistant' %}
{%- if ns.asked %}{{ '<｜Assistant｜></think>' }}{% endif %}{% set ns.asked = false %}{{ m.content }}
{%- for c in m.tool_calls or [] %}{{ '<｜tool▁calls▁begin｜>' if loop.first else '' }}
{{- '<｜tool▁call▁begin｜>' + c.function.name + '<｜tool▁sep｜>' + c.function.arguments + '<｜tool▁call▁end｜>' }}
{{- '<｜tool▁calls▁end｜>' if loop.last else '' }}{% endfor %}{{ '<｜end▁of▁sentence｜>' }}
{%- elif m.role == 'tool' %}{% set ns.asked = false %}
{{- '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' }}
{%- endif %}{% endfor %}
{%- if add_generation_prompt and ns.asked %}{{ '<｜Assistant｜></think>' }}{% endif %}""",
    end="<｜end▁of▁sentence｜>",
    one=(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look_up<｜tool▁sep｜>"
        f"{_ORDER}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    two=(
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look_up<｜tool▁sep｜>{_ORDER}<｜tool▁call▁end｜>"
        f"<｜tool▁call▁begin｜>look_up<｜tool▁sep｜>{_SECOND}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    empty="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look_up<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    beside=(
        "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look_up<｜tool▁sep｜>"
        f"{_ORDER}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    malformed="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look_up<｜tool▁sep｜>{3}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    form="a name and JSON",
    added=("arguments", "tools"),
)
_DSML = """\
{{- '<｜begin▁of▁sentence｜>' }}{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
{%- if tools %}{{ '\\n\\n## Tools\\n' }}{% for tool in tools %}{{ tool.function | tojson + '\\n' }}{% endfor %}
{%- endif %}
{%- for m in messages %}
{%- if m.role == 'user' %}{{ '<｜User｜>' + m.content }}
{%- elif m.role == 'assistant' %}{{ '<｜Assistant｜><think>' }}
{{- (m.reasoning_content or '') + '</think>' + m.content }}
{%- if m.tool_calls %}{{ '\\n\\n<｜DSML｜BLOCK>' }}
{%- for c in m.tool_calls %}{{ '\\n<｜DSML｜invoke name="' + c.function.name + '">' }}
{%- for key, value in c.function.arguments.items() %}{{ '\\n<｜DSML｜parameter name="' + key + '" string="' }}
{{- 'true' if value is string else 'false' }}{{ '">' }}
{{- value if value is string else value | tojson }}{{ '</｜DSML｜parameter>' }}{% endfor %}
{{- '\\n</｜DSML｜invoke>' }}{% endfor %}{{ '\\n</｜DSML｜BLOCK>' }}{% endif %}{{ '<｜end▁of▁sentence｜>' }}
{%- elif m.role == 'tool' %}
{%- if loop.previtem.role != 'tool' %}{{ '<｜User｜>' }}{% endif %}{{ '<tool_result>' + m.content + '</tool_result>' }}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜><think>' }}{% endif %}"""


def _dsml(block: str) -> Family:
    """DeepSeek's markup: V3.2 calls the block function_calls, and V4 tool_calls."""
    arguments = (
        '<｜DSML｜parameter name="order" string="true">12</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="most" string="false">3</｜DSML｜parameter>\n'
    )
    first = f'<｜DSML｜invoke name="look_up">\n{arguments}</｜DSML｜invoke>\n'
    second = (
        '<｜DSML｜invoke name="look_up">\n<｜DSML｜parameter name="order" string="true">7</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n"
    )
    return Family(
        template=_DSML.replace("BLOCK", block),
        end="<｜end▁of▁sentence｜>",
        one=f"<｜DSML｜{block}>\n{first}</｜DSML｜{block}>",
        two=f"<｜DSML｜{block}>\n{first}{second}</｜DSML｜{block}>",
        empty=f'<｜DSML｜{block}>\n<｜DSML｜invoke name="look_up">\n</｜DSML｜invoke>\n</｜DSML｜{block}>',
        beside=f"I look.\n\n<｜DSML｜{block}>\n{first}</｜DSML｜{block}>",
        malformed=f'<｜DSML｜{block}>\n<｜DSML｜invoke name="look_up">\n{arguments[:50]}\n</｜DSML｜{block}>',
        form="an element for each argument",
    )


DEEPSEEK_V3_2, DEEPSEEK_V4 = _dsml("function_calls"), _dsml("tool_calls")
GLM_4_7 = Family(
    template="""\
{{- '[gMASK]<sop>' }}
{%- if tools %}{{ '<|system|>\\n<tools>\\n' }}{% for tool in tools %}{{ tool | tojson + '\\n' }}{% endfor %}
{{- '</tools>' }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'user' %}{{ '<|user|>' + m.content }}
{%- elif m.role == 'system' %}{{ '<|system|>' + m.content }}
{%- elif m.role == 'assistant' %}{{ '<|assistant|></think>' + m.content }}
{%- for c in m.tool_calls or [] %}{{ '<tool_call>' + c.function.name }}
{%- for key, value in c.function.arguments.items() %}{{ '<arg_key>' + key + '</arg_key><arg_value>' }}
{{- value if value is string else value | tojson }}{{ '</arg_value>' }}{% endfor %}{{ '</tool_call>' }}{% endfor %}
{%- elif m.role == 'tool' %}
{%- if loop.previtem.role != 'tool' %}{{ '<|observation|>' }}{% endif %}
{{- '<tool_response>' + m.content + '</tool_response>' }}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|></think>' }}{% endif %}""",
    end="<|endoftext|>",
    one=(
        "<tool_call>look_up<arg_key>order</arg_key><arg_value>12</arg_value><arg_key>most</arg_key>"
        "<arg_value>3</arg_value></tool_call>"
    ),
    two=(
        "<tool_call>look_up<arg_key>order</arg_key><arg_value>12</arg_value><arg_key>most</arg_key>"
        "<arg_value>3</arg_value></tool_call><tool_call>look_up<arg_key>order</arg_key><arg_value>7</arg_value>"
        "</tool_call>"
    ),
    empty="<tool_call>look_up</tool_call>",
    beside=(
        "I look.<tool_call>look_up<arg_key>order</arg_key><arg_value>12</arg_value><arg_key>most</arg_key>"
        "<arg_value>3</arg_value></tool_call>"
    ),
    malformed="<tool_call>look_up<arg_key>order</arg_key>12</tool_call>",
    form="an element for each argument",
)
MINISTRAL_3 = Family(
    template="""\
{{- '<s>' }}
{%- if messages[0].role == 'system' %}{{ '[SYSTEM_PROMPT]' + messages[0].content + '[/SYSTEM_PROMPT]' }}{% endif %}
{%- if tools %}{{ '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}
{%- elif m.role == 'assistant' %}{{ m.content }}
{%- for c in m.tool_calls or [] %}{{ '[TOOL_CALLS]' + c.function.name + '[ARGS]' + c.function.arguments | tojson }}
{%- endfor %}{{ '</s>' }}
{%- elif m.role == 'tool' %}{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}{% endif %}{% endfor %}""",
    end="</s>",
    one=f"[TOOL_CALLS]look_up[ARGS]{_ORDER}",
    two=f"[TOOL_CALLS]look_up[ARGS]{_ORDER}[TOOL_CALLS]look_up[ARGS]{_SECOND}",
    empty="[TOOL_CALLS]look_up[ARGS]{}",
    beside=f"I look.[TOOL_CALLS]look_up[ARGS]{_ORDER}",
    malformed='[TOOL_CALLS]look_up[ARGS]{"order": ',
    form="a name and JSON",
)
FAMILIES = {
    "MiniMax M2": MINIMAX_M2,
    "Granite 4": GRANITE_4,
    "Command R7B, Command A": COMMAND,
    "Kimi K2": KIMI_K2,
    "DeepSeek V3.1": DEEPSEEK_V3_1,
    "DeepSeek V3.2": DEEPSEEK_V3_2,
    "DeepSeek V4": DEEPSEEK_V4,
    "GLM 4.7": GLM_4_7,
    "Ministral 3": MINISTRAL_3,
}
