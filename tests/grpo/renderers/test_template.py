"""Renderings that equal templates share."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from grpo.messages import Message, Tool
from grpo.renderers.placeholders import shape_of
from grpo.renderers.template import ChatTemplate, TemplateFailure
from tests.grpo.renderers import published

SOURCE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ bos_token }}{% endfor %}{{ tools }}"
SHAPES = (shape_of(Message(role="user", content="hi")),)


class CountedTokenizer(PreTrainedTokenizerFast):
    """Tokenizer that counts its renderings, each of which reads the special tokens."""

    reads = 0

    @property
    def special_tokens_map(self) -> dict[str, Any]:
        self.reads += 1
        return super().special_tokens_map


def counted(name: str, *, begin: str = "<bos>") -> CountedTokenizer:
    """A tokenizer in the folder `name`, with this token at the beginning of texts."""
    made = published.tokenizer(SOURCE)
    tokenizer = CountedTokenizer(tokenizer_object=made.backend_tokenizer, bos_token=begin, eos_token="<eos>")
    tokenizer.name_or_path = name
    return tokenizer


def test_tokenizers_of_two_checkpoints_render_a_conversation_once():
    """The second checkpoint has a tokenizer of its own with the same template, special tokens and tools."""
    first, second = counted("first"), counted("second")
    tools = (Tool(name="look_up", description="Find.", parameters={"type": "object", "properties": {}}),)
    templates = [ChatTemplate(tokenizer, SOURCE, tools) for tokenizer in (first, second)]
    first.reads = second.reads = 0
    assert len({template.render(SHAPES, True) for template in templates}) == 1
    assert (first.reads, second.reads) == (1, 0)


@pytest.mark.parametrize("change", ["source", "special tokens", "tools"])
def test_templates_that_differ_render_for_themselves(change: str):
    """Each of the three decides the text."""
    tool = Tool(name=change, description="Find.", parameters={"type": "object", "properties": {}})
    texts = [
        ChatTemplate(tokenizer, source, tools).render(SHAPES, True)
        for tokenizer, source, tools in (
            (counted("first"), SOURCE, ()),
            (
                counted("second", begin="<eos>" if change == "special tokens" else "<bos>"),
                SOURCE + "!" * (change == "source"),
                (tool,) * (change == "tools"),
            ),
        )
    ]
    assert texts[0] != texts[1]


def test_a_failure_names_the_model_that_was_asked():
    """A failure is not kept, so that equal templates of two models do not share its message."""
    source = "{{ raise_exception('no user') }}"
    for name in ("first", "second"):
        with pytest.raises(TemplateFailure, match=f"chat template of '{name}' fails on messages of user: .*no user"):
            ChatTemplate(counted(name), source).render(SHAPES, True)
