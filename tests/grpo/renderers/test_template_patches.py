from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import pytest

from grpo.errors import PolicyError
from grpo.messages import Message, Tool, ToolCall
from grpo.policy.tokenizer import load_tokenizer
from grpo.renderers.chat_template import Renderer, rendering_tokenizer
from tests.grpo.renderers import published
from tests.grpo.renderers.conversations import ERRAND, LOOK_UP, call, reply, result, system, user, without_reasoning

PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A template as SmolLM2's, which prints roles and contents alone."""
ALTERNATING = (
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "[{{ 'model' if m.role == 'assistant' else m.role }}]{{ m.content | trim }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}[model]{% endif %}"
)
"""A template as Gemma's, which raises for a system message, a result, and two users in a row."""
PYTHONIC = "{% for t in tools or [] %}{{ t.function }}{% endfor %}" + PLAIN.replace(
    "{{ m.content }}",
    "{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ ('[' if loop.first else ', ') + c.function.name + '(' }}"
    "{% for key, value in c.function.arguments.items() %}{{ ', ' if not loop.first }}{{ key }}={{ value | tojson }}"
    "{% endfor %}{{ ')' + (']' if loop.last else '') }}{% endfor %}",
)
"""Calls in Python as Llama 4's, in brackets and without a marker."""
LISTED = (
    "{% if tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}{% for m in messages %}"
    "{% if m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('nine characters') }}{% endif %}"
    "[RESULT]{{ m.content }}[/RESULT]{% elif m.role == 'assistant' %}{% if m.tool_calls %}[CALLS]["
    "{% for c in m.tool_calls %}"
    '{{ \'{"name": "\' + c.function.name + \'", "arguments": \' + c.function.arguments | tojson }}'
    "{{ ', \"id\": \"' + c.id + '\"}' }}"
    "{{ ', ' if not loop.last }}{% endfor %}]<|im_end|>{% else %} {{ m.content }}<|im_end|>{% endif %}"
    "{% else %}[INST] {{ m.content }}[/INST]{% endif %}{% endfor %}"
)
"""A template as Mistral's: calls as a list with ids of nine characters."""


def _renderer(template: str) -> Renderer:
    return Renderer(published.tokenizer(template, end="<|im_end|>"), tools=(LOOK_UP,))


def _text(renderer: Renderer, *messages: Message) -> str:
    return str(renderer.tokenizer.decode(renderer.build_prompt(messages)))


def test_a_template_without_tools_gets_them_in_the_system_message():
    """The whole prompt: the text of the system message, a line for each tool, and the form of a call."""
    assert _text(_renderer(PLAIN), system("Be brief."), user("hello")) == (
        "<|im_start|>system\nBe brief.\n\n# Tools\n\nEach line describes a tool in JSON:\n"
        '{"type": "function", "function": {"name": "look_up", "description": "Find an order", "parameters": '
        '{"type": "object", "properties": {"order": {"type": "string", "description": "its number"}, '
        '"most": {"type": "integer"}}, "required": ["order"]}}}\n\n'
        "To call a tool, write its name and arguments in this form alone:\n"
        '<tool_call>\n{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}\n</tool_call>\n'
        "You read its result before you go on. Without a call you speak to the user.<|im_end|>\n"
        "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    )


def test_calls_are_rendered_in_the_form_that_the_prompt_states():
    """JSON between tags after the content; it is parsed as it is rendered."""
    renderer = _renderer(PLAIN)
    turn = Message(role="assistant", content="Let me see.", tool_calls=call(order="1").tool_calls)
    ids = renderer.encode_reply(turn)
    assert renderer.decode(ids) == (
        'Let me see.\n<tool_call>\n{"name": "look_up", "arguments": {"order": "1"}}\n</tool_call>'
    )
    assert renderer.parse_reply(ids) == turn


def test_a_template_that_renders_all_is_kept():
    """Calls in Python, of which an argument ends in the bracket that ends the calls."""
    renderer = _renderer(PYTHONIC)
    assert (renderer.added, renderer.template) == ((), PYTHONIC)
    assert _renderer(PLAIN).added == ("tools", "calls")
    turn = Message(
        role="assistant", content="", tool_calls=(ToolCall(name="look_up", arguments={"order": ["1", "2"]}),)
    )
    ids = renderer.encode_reply(turn)
    assert renderer.decode(ids) == '[look_up(order=["1", "2"])]'
    assert renderer.parse_reply(ids) == turn
    malformed = renderer.parse_text("[look_up(order=1)][look_up(order=2)]").malformed
    assert malformed == "not a tool call: look_up(order=1)"


def test_a_template_that_raises_gets_what_it_renders():
    """The system message before the first of the user, results as the user's, and users in a row as one."""
    renderer = _renderer(ALTERNATING)
    prompt = _text(renderer, system("Be brief."), user("hello"), user(" there "))
    assert prompt.startswith("[user]Be brief.\n\n# Tools")
    assert prompt.endswith("speak to the user.\n\nhello\n\n there<|im_end|>[model]")
    bridge = renderer.build_continuation((user("12"), call(order="12")), (result("5"), user("so?")))
    expected = "[user]<tool_response>\n5\n</tool_response>\n\nso?<|im_end|>[model]"
    assert renderer.tokenizer.decode(bridge) == expected


def test_a_list_of_calls_is_parsed_and_named_by_ids():
    """As in Mistral's templates; a second call stands in the same list."""
    renderer = _renderer(LISTED)
    twice = Message(role="assistant", content="", tool_calls=(*call(order="1").tool_calls, *call(most=2).tool_calls))
    text = renderer.decode(renderer.encode_reply(twice, (user("x"),)))
    assert text.startswith('[CALLS][{"name": "look_up", "arguments": {"order": "1"}, "id": "')
    assert renderer.parse_text(text).tool_calls == twice.tool_calls
    bridge = renderer.build_continuation((user("x"), twice), (result("5"),))
    assert renderer.tokenizer.decode(bridge) == "[RESULT]5[/RESULT]"


def test_a_template_without_arguments_as_objects_gets_their_json():
    """One that adds the arguments to a text fails on an object."""
    template = PLAIN.replace(
        "{{ m.content }}",
        '{{ m.content }}{% for c in m.tool_calls or [] %}{{ \'<tool_call>{"name": "\' + c.function.name + '
        "'\", \"arguments\": ' + c.function.arguments + '}</tool_call>' }}{% endfor %}",
    )
    renderer = _renderer("{% for t in tools or [] %}{{ t }}{% endfor %}" + template)
    assert renderer.decode(renderer.encode_reply(call(order="1"))) == (
        '<tool_call>{"name": "look_up", "arguments": {"order": "1"}}</tool_call>'
    )


def test_the_template_that_is_saved_renders_the_same(tmp_path: Path):
    """A tokenizer for export states tools and results in the same form, to all who render with it."""
    renderer = _renderer(ALTERNATING)
    saved = rendering_tokenizer(renderer.tokenizer)
    assert renderer.tokenizer.chat_template == ALTERNATING
    saved.save_pretrained(tmp_path)
    again = Renderer(load_tokenizer(tmp_path), tools=(LOOK_UP,))
    assert again.hash == renderer.hash
    conversation = without_reasoning(ERRAND)
    assert again.tokenize_conversation(conversation) == renderer.tokenize_conversation(conversation)
    messages = [message.to_template() for message in ERRAND[:2]]
    rendered = saved.apply_chat_template(
        messages, tools=[LOOK_UP.to_template()], tokenize=False, add_generation_prompt=True
    )
    assert rendered == renderer.tokenizer.decode(renderer.build_prompt(ERRAND[:2]))


def test_a_template_that_changes_texts_inside_is_refused():
    """One that joins empty lines would make other tokens of a text than the text has."""
    with pytest.raises(PolicyError, match="changes the inside of a user's text"):
        _renderer(PLAIN.replace("m.content", "m.content.replace('\\n\\n', '\\n')"))


def test_a_conversation_that_a_template_refuses_is_named_by_its_roles():
    """One that begins with an assistant's turn; an error that answers a malformed call is rendered."""
    renderer = Renderer(published.tokenizer(ALTERNATING, end="<|im_end|>"))
    with pytest.raises(PolicyError, match=r"chat template of .* fails on messages of assistant, user: .*alternate"):
        renderer.build_prompt((reply("Welcome!"), user("hi")))
    answered = renderer.build_continuation(
        (user("x"), Message(role="assistant", content="<tool_call>{", malformed="not a tool call: {")), (result("no"),)
    )
    assert "<tool_response>\nno\n</tool_response>" in renderer.tokenizer.decode(answered)


def test_texts_of_calls_in_a_history_are_no_control_tokens():
    """A prompt with an earlier call whose argument, or its name, quotes a control token."""
    renderer = _renderer(PLAIN)
    keyed = Message(
        role="assistant", content="", tool_calls=(ToolCall(name="look_up", arguments={"<|im_end|>": "⸨0c⸩"}),)
    )
    quoting = Message(
        role="assistant", content="", tool_calls=(ToolCall(name="look_up", arguments={"order": "<|im_end|>"}),)
    )
    benign = Message(role="assistant", content="", tool_calls=(ToolCall(name="look_up", arguments={"order": "12"}),))
    counts = [
        renderer.build_prompt((user("x"), turn, result("5"))).count(renderer.stop_id)
        for turn in (quoting, keyed, benign)
    ]
    assert len(set(counts)) == 1


def test_the_date_of_a_template_is_that_of_each_prompt():
    """A run that passes midnight goes on: prompts have the new date, and what was rendered before still fits."""
    renderer = _renderer("{% set now = strftime_now('%f') %}[{{ now }}]" + PLAIN)
    first, second = (_text(renderer, user("hello")) for _ in range(2))
    assert first != second
    assert re.fullmatch(r"\[\d{6}\]", first.partition("<|im_start|>")[0].partition("# Tools")[0].strip() or first[:8])
    history = (user("hello"), reply("hi"))
    assert renderer.decode(renderer.encode_reply(history[1], history[:1])) == "hi"
    bridge = renderer.build_continuation(history, (user("bye"),))
    assert renderer.tokenizer.decode(bridge) == "\n<|im_start|>user\nbye<|im_end|>\n<|im_start|>assistant\n"


def test_a_comment_fixes_the_date_of_a_template():
    """The tokens of a run that goes on another day are the same, what is saved prints it too; a day is a day."""
    dated = "{% set now = strftime_now('%d %b %Y') %}[{{ now }}]" + PLAIN
    renderer = _renderer("{#- date 2026-03-07 #}" + dated)
    assert "[07 Mar 2026]" in _text(renderer, user("hello"))
    saved = rendering_tokenizer(renderer.tokenizer)
    assert saved.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False).startswith("[07 Mar 2026]")
    with pytest.raises(PolicyError, match=r"has a comment with the date '2026-02-30', which is not a day as in"):
        _renderer("{#- date 2026-02-30 #}" + dated)


@pytest.mark.parametrize(
    ("expression", "printed"),
    [
        ("strftime_now('%d') | int", "7"),
        ("strftime_now('%d %B') | upper", "07 MARCH"),
        ("strftime_now('%Y-%m-%d')[:4]", "2026"),
        ("'am' if strftime_now('%H') | int < 12 else 'pm'", "am"),
    ],
)
def test_a_template_that_computes_with_the_date_needs_a_fixed_one(expression: str, printed: str):
    """A placeholder stands for the date; with a comment the date itself does."""
    computing = "[{{ " + expression + " }}]" + PLAIN
    with pytest.raises(PolicyError, match=r"computes with the date.*\{#- date 2026-11-25 #\}"):
        _renderer(computing)
    assert _text(_renderer("{#- date 2026-03-07 #}" + computing), user("x")).startswith(f"[{printed}]")


def test_a_date_may_be_named():
    """As transformers' function takes it."""
    before = datetime.now()
    text = _text(_renderer("[{{ strftime_now(format='%Y') }}]" + PLAIN), user("x"))
    assert text[:6] in {f"[{time:%Y}]" for time in (before, datetime.now())}


def test_a_template_for_tools_and_one_without_are_both_used(tmp_path: Path):
    """As transformers chooses of several; what is saved is one template that renders the same."""
    for_tools = PYTHONIC.replace("{% for t in tools or [] %}", "[TOOLS]{% for t in tools %}")
    tokenizer = published.tokenizer(PLAIN, end="<|im_end|>")
    tokenizer.chat_template = {"default": PLAIN, "tool_use": for_tools}
    plain, tooled = Renderer(tokenizer), Renderer(tokenizer, tools=(LOOK_UP,))
    assert _text(plain, user("hello")) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert _text(tooled, user("hello")).startswith("[TOOLS]{")
    assert tooled.decode(tooled.encode_reply(call(order="1"))) == '[look_up(order="1")]'
    rendering_tokenizer(tokenizer).save_pretrained(tmp_path)
    again = Renderer(load_tokenizer(tmp_path), tools=(LOOK_UP,))
    assert plain.hash == tooled.hash == again.hash
    assert again.build_prompt((user("hello"),)) == tooled.build_prompt((user("hello"),))


THINKING = (
    "{% for m in messages %}<|turn|>{{ m.role }}:{% if m.role == 'assistant' %}"
    "{% if m.reasoning_content %}<|begin_think|>{{ m.reasoning_content }}<|end_think|>{% endif %}"
    "<|begin_text|>{% endif %}"
    "{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant:<|begin_think|>{% endif %}"
)
"""A template whose prompt opens a reasoning that it leaves out of turns without one."""


def test_a_turn_begins_with_a_whole_mark():
    """The prompt ends in <|begin_think|>, which the turn closes; nothing of either mark is cut off."""
    renderer = Renderer(published.tokenizer("{#- turns as generated #}" + THINKING, end="<|end|>"))
    ids = renderer.encode_reply(reply("yes"))
    assert renderer.tokenizer.decode(ids) == "<|end_think|><|begin_text|>yes<|end|>"
    assert renderer.parse_reply(ids) == reply("yes")


def test_an_earlier_release_of_a_template_has_its_training_variant():
    """Qwen3's before its contents could be other than texts renders the same conversations."""
    earlier = published.template("qwen3").replace("message.content is string and ", "")
    assert earlier != published.template("qwen3")
    renderers = [
        Renderer(published.tokenizer(source, end="<|im_end|>")) for source in (earlier, published.template("qwen3"))
    ]
    assert renderers[0].template == renderers[1].template
    with pytest.raises(PolicyError, match="not prefix-preserving"):
        Renderer(published.tokenizer(earlier.replace("'\\n<think>\\n'", "'\\n<think>\\n\\n'"), end="<|im_end|>"))


def test_a_switch_for_reasoning_is_offered_where_it_helps():
    """A template that closes the reasoning in prompts alone, unless reasoning is on."""
    closing = PLAIN.replace(
        "<|im_start|>assistant\n{% endif %}",
        "<|im_start|>assistant\n{% if not enable_thinking %}<think></think>{% endif %}{% endif %}",
    )
    with pytest.raises(PolicyError, match=r"enable_thinking = true %\} \(reasoning in each turn\)"):
        Renderer(published.tokenizer(closing, end="<|im_end|>"))
    Renderer(published.tokenizer("{%- set enable_thinking = true %}\n" + closing, end="<|im_end|>"))


def test_a_template_that_its_user_changed_stays(tmp_path: Path):
    """Qwen3's with the descriptions of tools in another form: it is refused, and not replaced by TRL's."""
    changed = published.template("qwen3").replace(
        "{{- tool | tojson }}", "{{- tool | tojson }}{{- tool.function.description }}"
    )
    with pytest.raises(PolicyError, match="not prefix-preserving"):
        Renderer(published.tokenizer(changed, end="<|im_end|>"))


def test_turns_as_generated_begin_after_what_the_prompt_has():
    """A template whose messages and prompt differ in white space before the reply."""
    indented = (
        "{#- turns as generated #}{% for m in messages %}\n\n  <|im_start|>{{ m.role }}\n"
        "{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}\n  <|im_start|>assistant\n\n{% endif %}"
    )
    renderer = Renderer(published.tokenizer(indented, end="<|im_end|>"))
    assert renderer.decode(renderer.encode_reply(reply("yes"))) == "yes"


def test_turns_as_generated_that_cannot_be_continued_are_refused_at_once():
    """A template that leaves a call out once its result follows."""
    rewriting = (
        "{% for m in messages %}{% if m.role == 'tool' %}[RESULT]{{ m.content }}"
        "{% elif m.tool_calls and not loop.last %}[CALLED]{% else %}[{{ m.role }}]{{ m.content }}"
        "{% for c in m.tool_calls or [] %}<call>{{ c.function | tojson }}</call>{% endfor %}<|im_end|>{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    source = "{#- turns as generated #}" + rewriting
    Renderer(published.tokenizer(source, end="<|im_end|>"))
    with pytest.raises(PolicyError, match="rewrites earlier turns when a tool message follows"):
        Renderer(published.tokenizer(source, end="<|im_end|>"), tools=(LOOK_UP,))


def test_names_in_html_are_escaped_as_the_template_escapes_them():
    """A template that adds a name to JSON that is marked as safe escapes the name."""
    escaping = PLAIN.replace(
        "{{ m.content }}",
        "{{ m.content }}{% for c in m.tool_calls or [] %}"
        "<call>{{ c.function.name + '=' + (c.function.arguments | tojson | safe) }}</call>{% endfor %}",
    )
    tool = Tool(name="a&b", description="", parameters={"type": "object", "properties": {}})
    renderer = Renderer(
        published.tokenizer("{% for t in tools or [] %}{{ t }}{% endfor %}" + escaping, end="<|im_end|>"), tools=(tool,)
    )
    turn = Message(role="assistant", content="", tool_calls=(ToolCall(name="a&b", arguments={"x": "1 & 2"}),))
    assert renderer.decode(renderer.encode_reply(turn)) == '<call>a&amp;b={"x": "1 & 2"}</call>'


def test_a_template_that_changes_results_or_replies_inside_is_refused():
    """One that joins the lines of results, with tools alone; and one that replaces letters of replies, when it does."""
    joining = PLAIN.replace("m.content", "(m.content.replace('\n\n', '\n') if m.role == 'tool' else m.content)")
    Renderer(published.tokenizer(joining, end="<|im_end|>"))
    with pytest.raises(PolicyError, match="changes the inside of a tool's result"):
        _renderer(joining)
    replacing = PLAIN.replace("m.content", "(m.content.replace('c', 'C') if m.role == 'assistant' else m.content)")
    with pytest.raises(PolicyError, match=r"changes letters inside of texts|prints no message|leaves"):
        Renderer(published.tokenizer(replacing, end="<|im_end|>")).encode_reply(reply("cat"))


def test_a_result_without_a_mark_of_its_own_gets_one():
    """Falcon writes a label before the texts of three roles, and before a result none."""
    source = (
        "{% for message in messages %}{% if not loop.first %}{{ '\\n' }}{% endif %}"
        "{% if message.role == 'system' %}{{ 'System: ' }}{% elif message.role == 'user' %}{{ 'User: ' }}"
        "{% elif message.role == 'assistant' %}{{ 'Falcon: ' }}{% endif %}{{ message.content }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '\\nFalcon:' }}{% endif %}"
    )
    renderer = Renderer(published.tokenizer(source), tools=(Tool(name="f", parameters={"type": "object"}),))
    assert "results" in renderer.added
    turn = Message(role="assistant", content="", tool_calls=(ToolCall(name="f", arguments={}),))
    history = (Message(role="user", content="x"), turn, Message(role="tool", content="lost"))
    assert "User: <tool_response>\nlost\n</tool_response>" in renderer.decode(renderer.build_prompt(history))
