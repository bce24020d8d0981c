"""Commands that serve an exported folder with vLLM."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from grpo.errors import PolicyError
from grpo.messages import Message, ToolCall
from grpo.renderers.chat_template import Renderer

TEMPLATE = "chat_template.jinja"
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM takes for --max-lora-rank."""
_PARSERS = {
    "openai": r"<\|channel\|>",
    "mistral": r"\[TOOL_CALLS\]",
    "glm45": r"<arg_key>",
    "qwen3_coder": r"<function=",
    "hermes": r"<tool_call>\s*\{",
    "deepseek_v3": r"<｜tool▁sep｜>[^{]*```json",
    "deepseek_v31": r"<｜tool▁sep｜>\{",
    "llama3_json": r'\{\s*"(type|name)"[^{]*"parameters"|<\|python_tag\|>',
    "pythonic": r"^\s*\[\w+\(",
}
"""vLLM's parsers of tool calls, each with a pattern of the calls that it reads. The first pattern that fits counts."""


def tool_parser(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """vLLM's parser for the calls that a chat template renders. None if vLLM has no parser for their format."""
    call = Message(role="assistant", content="", tool_calls=(ToolCall(name="look_up", arguments={"order": "1"}),))
    try:
        renderer = Renderer(tokenizer)
        text = renderer.decode(renderer.encode_reply(call))
    except PolicyError:
        return None
    return next((name for name, shape in _PARSERS.items() if re.search(shape, text)), None)


def vllm_command(
    folder: Path, name: str, *, context: int | None, parser: str | None, adapters: tuple[Path, int] | None = None
) -> str:
    """Command that serves a folder under a name. `adapters` are the folder of the adapters and their rank.

    If `context` is None, vLLM derives it from the model. The chat template is the folder's own. As in the evaluation,
    the sampling settings are vLLM's defaults instead of those in generation_config.json.
    """
    words = ["vllm", "serve", str(folder)]
    words += ["--max-model-len", str(context)] if context is not None else []
    words += ["--generation-config", "vllm"]
    words += ["--chat-template", str(folder / TEMPLATE)]
    if parser is not None:
        words += ["--enable-auto-tool-choice", "--tool-call-parser", parser]
    if adapters is None:
        words += ["--served-model-name", name]
    else:
        path, rank = adapters
        most = next((known for known in _RANKS if known >= rank), rank)
        words += ["--enable-lora", "--max-lora-rank", str(most), "--lora-modules", f"{name}={path}"]
    return shlex.join(words)
