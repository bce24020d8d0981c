"""Messages ↔ token ids through a chat template. Sampled tokens are never tokenized again.

    build_prompt(S U)                →  P     prompt up to the start of the assistant turn
    policy samples                   →  A1    kept as sampled, stop token included
    build_continuation(S U A1, T)    →  E     template text between A1 and the start of the next assistant turn

`P A1 E A2 …` is the trajectory, and the template renders the same for the whole conversation. Texts of messages become
ordinary tokens. For example, "<|end|>" typed by a user is not a control token.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.errors import ConfigError, PolicyError
from grpo.messages import END_OF_THINK, THINK, Message, Tool
from grpo.renderers.chat_format import ChatFormat, form_of
from grpo.renderers.encoding import Place, any_of, control_tokens, text_encoder
from grpo.renderers.placeholders import (
    MessageShape,
    fill,
    history_shape,
    shape_of,
    slots_in,
    template_messages,
    texts_of,
)
from grpo.renderers.reply_format import Progress
from grpo.renderers.reply_grammar import ReplyShape, reply_grammar
from grpo.renderers.template import ChatTemplate, TemplateFailure, TemplateTimeout
from grpo.renderers.template_choice import Variant, find_variant, remedies, source_of
from grpo.renderers.template_patches import FORMS, Form
from grpo.renderers.trial import conversations_to_go_on
from grpo.renderers.turn_boundaries import TurnEnd, reply_shape, tail, turn_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MIN_VOCABULARY = 32
MOST_CALLS = 2**20
"""Calls of a turn if the template does not limit them."""
_CACHED = 4096
_LONGEST = 64
"""Characters of the longest control token that is searched for at the end of a prompt."""
_AFTER = (Message(role="user", content="x"),)


class Renderer:
    """Renderer of conversations for one tokenizer, chat template and set of tools.

    `stop_ids` are the tokens that end a turn: the ones in generation_config.json, the template's, and the tokenizer's
    `eos`. `stop_id` is the template's own. `template` is the template that conversations are rendered with, see
    `grpo.renderers.template_choice`. Export this template with the model. `added` are the parts that the model's own
    template leaves out. `most_calls` is 1 if the template renders only one call per turn. `reasons` is True if replies
    have reasoning, and `begins_reasoning` is True if a prompt opens it.

    Raises `PolicyError` if the tokenizer is empty (transformers silently creates one if the files are missing), or if
    the chat template is missing, fails, does not terminate, or rewrites earlier turns.

    To use a subclass in a run, set `policy.renderer`, see `grpo.policy.renderer`. `hash` identifies what it renders.
    """

    hash: str
    added: tuple[Form, ...] = ()
    most_calls = MOST_CALLS
    reasons = begins_reasoning = False

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, tools: Sequence[Tool] = ()) -> None:
        self.tokenizer = tokenizer
        self.tools = tuple(tools)
        if (odd := next((tool for tool in self.tools if not isinstance(tool, Tool)), None)) is not None:
            raise ConfigError(f"a tool is a {type(odd).__name__}. Make a grpo.Tool by grpo.tools.tool_from_function")
        variant, controls, declared = _inspect(tokenizer)
        _check_prefix(tokenizer, variant, tools)
        self._variant = variant
        self.template = variant.source
        self.added = tuple(form for form in FORMS if form in variant.forms)
        self.most_calls = 1 if variant.most_calls == 1 else MOST_CALLS
        self.reasons, self.begins_reasoning = variant.reasons, variant.begun
        self.hash = _hash(tokenizer, variant)
        self._controls = any_of(controls)
        ends = [end.text for end in (variant.ends.reply, variant.ends.call) if end.text is not None]
        self.stop_ids = frozenset({*declared, *map(self._id_of, ends)})
        if not self.stop_ids:
            raise PolicyError(f"tokenizer of {tokenizer.name_or_path!r} has no eos token to end a turn with")
        self.stop_id = self._stop_id_of(variant.ends.reply)
        self._template = ChatTemplate(tokenizer, variant.source, self.tools)
        self._encoder = text_encoder(tokenizer, controls)
        self._check_tools()
        self._bridge = lru_cache(maxsize=_CACHED)(self._render_bridge)
        self._check_bridges()

    def _check_tools(self) -> None:
        """Raise `PolicyError` that names the tool if the template fails on its schema."""
        for tool in self.tools:
            template = self._template.with_tools((tool,))
            try:
                template.render_messages(template_messages(tuple(map(shape_of, _AFTER))), True)
            except (TemplateFailure, TemplateTimeout) as failure:
                cause = failure.__cause__
                raise template.failure(
                    f"fails on the schema of the tool {tool.name}: {type(cause).__name__}: {cause}. Simplify it: one "
                    "type for each property, without anyOf and $ref"
                ) from failure

    def _check_bridges(self) -> None:
        """Raise `PolicyError` if the template cannot go on after what occurs in rollouts.

        The prompt is this class's own, because a subclass may not have set its attributes yet.
        """
        Renderer.build_prompt(self, (Message(role="user", content=""),))
        for history, new in conversations_to_go_on(calls=bool(self.tools), reasons=self.reasons):
            self.build_continuation(history, new)

    def build_prompt(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a prompt that ends at the start of the assistant turn."""
        shapes = tuple(map(shape_of, messages))
        rendered = self._template.render(shapes, True)
        self._check_rendered(rendered, shapes, start=0)
        return self._encoder.encode(fill(rendered, texts_of(messages)), place="first")

    def build_continuation(
        self, messages: Sequence[Message], new: Sequence[Message], *, ended_by: int | None = None
    ) -> list[int]:
        """Token ids between the sampled assistant turn, the last of `messages`, and the next one, after `new`.

        `ended_by` is the last sampled token. It is needed because GLM's models end a turn with the first token of the
        next message.
        """
        token = None if ended_by is None else str(self.tokenizer.convert_ids_to_tokens(ended_by))
        bridge = self._bridge(self._history(messages), tuple(map(shape_of, new)), token)
        return self._encoder.encode(fill(bridge, texts_of((*messages, *new))), place="after")

    def encode_reply(self, message: Message, after: Sequence[Message] = _AFTER) -> list[int]:
        """Token ids of an assistant turn that is generated `after` these messages, stop token included."""
        after = _AFTER if self._variant.as_generated else after or _AFTER
        shape = reply_shape(message)
        marks = self._variant.format.reasoning or (THINK, END_OF_THINK)
        text = turn_text(self._template, self._variant.ends, (*self._history(after), shape), marks)
        if text is None:
            after = _AFTER
            text = turn_text(self._template, self._variant.ends, (*self._history(after), shape), marks)
        assert text is not None
        prompt = self._template.render(self._history(after), True)
        place: Place = "after" if self._ends_in_control(prompt) else "inside"
        ids = self._encoder.encode(fill(text, texts_of((*after, message))), place=place)
        return [*ids, self._stop_id_of(self._variant.ends.of(shape))]

    def tokenize_conversation(self, messages: Sequence[Message]) -> tuple[list[int], list[bool]]:
        """Token ids and loss mask of a complete conversation, rendered turn by turn as in a rollout."""
        first = next(i for i, message in enumerate(messages) if message.role == "assistant")
        ids = self.build_prompt(messages[:first])
        mask = [False] * len(ids)
        position = first
        while position < len(messages):
            reply = self.encode_reply(messages[position], messages[:position])
            ids, mask = ids + reply, mask + [True] * len(reply)
            following = position + 1
            while following < len(messages) and messages[following].role != "assistant":
                following += 1
            if following < len(messages):
                read, new = messages[: position + 1], messages[position + 1 : following]
                bridge = self.build_continuation(read, new, ended_by=reply[-1])
                ids, mask = ids + bridge, mask + [False] * len(bridge)
            position = following
        return ids, mask

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Number of tokens of the messages' texts, without the template's tokens."""
        texts = [text for message in messages for text in (message.content, *map(str, message.tool_calls))]
        return sum(len(ids) for ids in self.tokenizer(texts, add_special_tokens=False)["input_ids"])

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode sampled token ids without the stop token. An incomplete character at the end becomes U+FFFD."""
        ids = list(token_ids)
        if ids and ids[-1] in self.stop_ids:
            ids.pop()
        return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def parse_reply(self, token_ids: Sequence[int]) -> Message:
        """Decode sampled token ids and parse them into a message."""
        return self._variant.format.parse(self.decode(token_ids), self.tools, begun=self._variant.begun)

    def parse_content(self, token_ids: Sequence[int]) -> Message:
        """Decode sampled token ids and parse them into a message that keeps calls as content."""
        return self._variant.format.parse_content(self.decode(token_ids), begun=self._variant.begun)

    def settled_content(self, text: str, progress: Progress | None = None) -> str:
        """Beginning of the content of an unfinished reply that no further token changes; see `ReplyFormat`."""
        return self._variant.format.settled_content(text, progress)

    def reply_grammar(self, shape: ReplyShape) -> str:
        """Grammar of the replies of a shape. Raises `NoGrammar` if the form of the calls has none."""
        variant = self._variant
        return reply_grammar(variant.format, shape, self.tokenizer, reasons=variant.reasons, begun=variant.begun)

    @cached_property
    def reads_later_system(self) -> bool:
        """True if the template prints a system message after the first turns."""
        reply, later = Message(role="assistant", content="x"), Message(role="system", content="x")
        return self._reads((*_AFTER, reply), (later, *_AFTER))

    @cached_property
    def reads_no_user(self) -> bool:
        """True if the template prints a conversation without a user message, and goes on after it."""
        return self._reads((Message(role="system", content="x"),), ()) and self._reads(
            (Message(role="system", content="x"), Message(role="assistant", content="x")), _AFTER
        )

    def _reads(self, history: tuple[Message, ...], new: tuple[Message, ...]) -> bool:
        try:
            self.build_prompt((*history, *new))
            if new:
                self.build_continuation(history, new)
        except PolicyError:
            return False
        return True

    @property
    def chat_format(self) -> ChatFormat:
        """Summary of how tools, calls, later system messages and conversations without a user are rendered."""
        return ChatFormat(
            form=form_of(self._variant.format),
            added=self.added,
            one_call=self.most_calls == 1,
            later_system=self.reads_later_system,
            without_user=self.reads_no_user,
        )

    def parse_text(self, text: str) -> Message:
        """Parse a complete reply that was not sampled after a prompt, e.g. by a script, or changed by an agent."""
        return self._variant.format.parse(text, self.tools)

    def _history(self, messages: Sequence[Message]) -> tuple[MessageShape, ...]:
        variant = self._variant
        return tuple(
            history_shape(
                message,
                with_content=variant.content_with_calls,
                with_reasoning=variant.reasons,
                calls=variant.most_calls,
                unparsed_as_call=variant.unparsed_as_call,
            )
            for message in messages
        )

    def _render_bridge(
        self, history: tuple[MessageShape, ...], new: tuple[MessageShape, ...], ended_by: str | None
    ) -> str:
        """Text, with slots, between the end of the last turn of `history` and the next assistant turn."""
        last = len(history) - 1
        before, after = self._template.render(history, False), self._template.render((*history, *new), True)
        try:
            own, rest = tail(before, last), tail(after, last)
        except ValueError as error:  # the turn is left out
            raise self._rewriting_error(new) from error
        end = self._variant.ends.of(history[last])
        proper = end.text is not None and not end.borrowed and end.text in own
        lead = own[: own.index(end.text)] if proper and end.text is not None else own.rstrip()
        kept = before[: len(before) - len(own)] == after[: len(after) - len(rest)]
        if not rest.startswith(lead) or not (kept or self._variant.as_generated):
            raise self._rewriting_error(new)
        text = rest[len(lead) :]
        match = self._controls.match(text.lstrip())
        ending = None if match is None else match[0]
        if proper and not text.startswith(end.text or "") and not self._variant.as_generated:
            raise self._template.failure(f"ends a turn with {end.text} only where no message follows")
        expected = end.text if ended_by is None else ended_by
        if ending is not None and (proper or (ending == expected and self._id_of(ending) in self.stop_ids)):
            text = text.lstrip()[len(ending) :]
        self._check_rendered(text, new, start=len(history))
        return text

    def _rewriting_error(self, new: Sequence[MessageShape]) -> PolicyError:
        role = new[0].role if new else "assistant"
        return PolicyError(
            f"chat template of {self.tokenizer.name_or_path!r} rewrites earlier turns when a {role} message follows. "
            "Sampled tokens cannot be kept: use a prefix-preserving template"
        )

    def _check_rendered(self, rendered: str, shapes: Sequence[MessageShape], *, start: int) -> None:
        """Raise `PolicyError` if a rendered text leaves out a message that is not the assistant's."""
        keys = {slot.key for slot in slots_in(rendered)}
        for index, shape in enumerate(shapes, start):
            if shape.filled and shape.role != "assistant" and f"{index}c" not in keys:
                roles = ", ".join(shape.role for shape in shapes)
                raise self._template.failure(f"leaves out the {shape.role} message in messages of {roles}")

    def _ends_in_control(self, text: str) -> bool:
        """Check that a text ends in a control token, with no white space after it."""
        return any(match.end() == len(text) for match in self._controls.finditer(text, max(0, len(text) - _LONGEST)))

    def _id_of(self, token: str) -> int:
        return int(self.tokenizer.convert_tokens_to_ids(token))

    def _stop_id_of(self, end: TurnEnd) -> int:
        """Token that ends a turn: the template's, or else the tokenizer's."""
        if end.text is not None:
            return self._id_of(end.text)
        eos = self.tokenizer.eos_token_id
        return min(self.stop_ids) if eos is None else int(eos)


def rendering_tokenizer(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Copy of a tokenizer with the template that conversations are rendered with, to save with the model.

    A server or a pipeline that reads the folder then renders tools, results and system messages in the same form. If no
    conversation can be rendered with the tokenizer, it is returned unchanged.
    """
    try:
        source = _inspect(tokenizer)[0].source
    except PolicyError:
        return tokenizer
    if tokenizer.chat_template == source:
        return tokenizer
    rendering = copy.copy(tokenizer)
    rendering.chat_template = source
    return rendering


def _hash(tokenizer: PreTrainedTokenizerBase, variant: Variant) -> str:
    """Digest of the vocabulary and of the template with its forms, which determine the ends and format of turns."""
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()))
    return hashlib.sha256(f"{vocabulary}\0{variant.source}".encode()).hexdigest()[:16]


def _inspect(tokenizer: PreTrainedTokenizerBase) -> tuple[Variant, frozenset[str], frozenset[int]]:
    """Variant of a tokenizer's template, its control tokens, and its declared end tokens."""
    if len(tokenizer) < MIN_VOCABULARY:
        raise PolicyError(
            f"tokenizer of {tokenizer.name_or_path!r} has {len(tokenizer)} tokens. "
            "Its files are missing: give a folder with tokenizer.json"
        )
    source = source_of(tokenizer)
    if not getattr(tokenizer, "is_fast", False):
        raise PolicyError(f"tokenizer of {tokenizer.name_or_path!r} is not a fast tokenizer. Add tokenizer.json")
    controls = control_tokens(tokenizer, source)
    declared = _declared_stop_ids(tokenizer)
    texts = frozenset(map(str, tokenizer.convert_ids_to_tokens(sorted(declared))))
    return find_variant(tokenizer, controls, texts), controls, declared


def _declared_stop_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """End tokens in the generation_config.json of the tokenizer's folder, and the tokenizer's own."""
    ids = set() if tokenizer.eos_token_id is None else {int(tokenizer.eos_token_id)}
    path = Path(tokenizer.name_or_path or "") / "generation_config.json"
    if path.is_file():
        named = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
        ids |= set(named if isinstance(named, list) else [] if named is None else [named])
    return frozenset(id_ for id_ in ids if 0 <= id_ < len(tokenizer))


def _check_prefix(tokenizer: PreTrainedTokenizerBase, variant: Variant, tools: Sequence[Tool]) -> None:
    """Raise `PolicyError` with a remedy if the template is not prefix-preserving."""
    fault = _fault(variant, tools)
    if fault is None:
        return
    if fault.startswith("chat template"):
        raise TemplateFailure(fault)
    source = source_of(tokenizer)
    lines = [
        f"{line} ({effect})" for line, effect in remedies(source).items() if _is_usable(tokenizer, line + source, tools)
    ]
    remedy = (
        f"Begin chat_template.jinja in the model folder, or policy.chat_template, with {' or '.join(lines)}"
        if lines
        else "No line of docs/internals/chat.md makes it usable: set policy.chat_template to another template"
    )
    raise PolicyError(
        f"chat template of {tokenizer.name_or_path!r} is not prefix-preserving: it {fault}, so that sampled tokens "
        f"cannot be kept. {remedy}"
    )


def _is_usable(tokenizer: PreTrainedTokenizerBase, source: str, tools: Sequence[Tool]) -> bool:
    """Check that a renderer can be made with this template, and that it goes on after each kind of turn."""
    trial = copy.copy(tokenizer)
    trial.chat_template = source
    try:
        if _fault(_inspect(trial)[0], tools) is not None:
            return False
        Renderer(trial, tools=tools)
    except PolicyError:
        return False
    return True


def _fault(variant: Variant, tools: Sequence[Tool]) -> str | None:
    return variant.fault or (variant.tool_fault if tools else None)
