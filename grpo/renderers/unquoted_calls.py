"""Tool calls whose keys have no quotes, as Gemma 4's models write them: `call:f{x:<|"|>a<|"|>}`.

One of the tool formats that `grpo.renderers.reply_format` chooses by the chat template. Replies are parsed with it in
rollouts and in service. transformers' own parser reads the object. This module finds where a call ends, because a text
in it may contain the marks of a call.
"""

from __future__ import annotations

from collections.abc import Sequence

from grpo.messages import Tool, ToolCall
from grpo.renderers.argument_values import read_arguments
from grpo.renderers.tool_formats import Marks, ToolFormat, after_word, name_at
from grpo.strict_json import as_json


class UnquotedCalls(ToolFormat):
    """A name and an object. Its keys have no quotes, and its texts stand between delimiters of the family."""

    def __init__(self, marks: Marks, *, delimiter: str) -> None:
        super().__init__(marks)
        self._delimiter = delimiter

    def _calls(self, text: str, position: int, tools: Sequence[Tool]) -> tuple[list[ToolCall], int]:
        from transformers.utils.chat_parsing.content_parsers import parse_content

        name, position = name_at(text, position)
        end = after_word(text, self._end(text, position), position)
        delimiters = [[self._delimiter, self._delimiter]]
        arguments = parse_content(text[position:end], "json", {"string_delims": delimiters, "unquoted_keys": True})
        return [ToolCall(name=name, arguments=read_arguments(as_json(arguments)))], end

    def _end(self, text: str, position: int) -> int:
        """Position of the closing mark, of the next call's marker outside of a text, or of the end."""
        closing = self._closing_mark.search(text, position)
        end, delimiters = closing.start() if closing else len(text), 0
        for opening in self._open.finditer(text, position, end):
            delimiters += text.count(self._delimiter, position, opening.start())
            position = opening.start()
            if delimiters % 2 == 0:
                return position
        return end
