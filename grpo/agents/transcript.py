"""Token transcript of one conversation with a policy: every token that it read or generated, in order.

A session's KV cache is append-only, so a conversation only grows. If the agent's own code changed a reply, the reply is
kept apart from the sampled tokens:

    turns       P | A1        P A1 E | A2 A2      A2 was overridden after sampling
    token_ids   P   A1   E   A2 A2                the sampled tokens in both cases
    loss_mask   .   x    .   .  .                 no loss on tokens that are not the reply

A hook may change what the policy reads of a new message, or add messages before it. The policy's context keeps what was
shown, and the next history has the changed message:

    environment     U1 "a  b"         A1      U2
    hook shows      U1 "a b"                  X U2        X is a message that the hook adds
    next history    U1 "a b"          A1      U2 …        the tokens also have X
"""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import Awaitable, Callable, MutableSequence, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from grpo.agents.agent import Agent, Context
from grpo.errors import PolicyError
from grpo.messages import Message
from grpo.policy.policy import Generation, Prompt, SampledToken, Sampling, Session
from grpo.renderers.chat_template import Renderer
from grpo.trajectories import Turn


class ContextLengthExceeded(PolicyError):
    """The conversation leaves no room for a reply within max_context. `remedy` is for the person who sets it."""

    def __init__(self, counts: str, remedy: str) -> None:
        super().__init__(counts, remedy)
        self.counts, self.remedy = counts, remedy

    def __str__(self) -> str:
        return f"{self.counts}. {self.remedy}"


T = TypeVar("T")
Encode = Callable[[], list[int]]
"""Rendering and tokenizing of new messages."""


class PrefixMismatch(PolicyError):
    """The prompt does not begin with the tokens that the policy has already read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One turn of an agent as the environment receives it."""

    message: Message
    text: str
    as_sampled: bool
    """False if the agent's own code changed or wrote the text, so that the turn is not trained on."""
    length_limited: bool
    """The turn reached max_new_tokens."""
    reasoning: str | None = None
    dropped: tuple[int, ...] = ()
    """Indices of the messages that were left out of the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptState:
    """State of a transcript between two turns, so that another process can continue with exactly the same tokens."""

    renderer: str
    """Hash of its renderer."""
    ids: bytes
    """Tokens as int32."""
    mask: bytes
    """One byte per token, 1 if the policy generated it."""
    logprobs: bytes
    """Log-probabilities as float64."""
    turns: tuple[Turn, ...]
    conversation: tuple[Message, ...]
    raw: tuple[Message, ...]
    shown: tuple[Message, ...]
    instructions: str | None
    length_limited: bool
    unended: bool


class TokenTranscript:
    """Token record of one conversation, with the session that generates in it."""

    def __init__(
        self,
        session: Session | None,
        renderer: Renderer,
        sampling: Sampling,
        *,
        max_context: int,
        on_token: Callable[[SampledToken], bool | None] | None = None,
        fit_reply: bool = False,
    ) -> None:
        self.renderer = renderer
        self.sampling = sampling
        self.max_context = max_context
        self.ids: MutableSequence[int] = []
        self.mask: list[bool] = []
        self.logprobs: MutableSequence[float] = []
        self.turns: list[Turn] = []
        self.conversation: list[Message] = []
        """Messages between agent and environment, as the policy has read them, and messages of the agent's tools."""
        self._before_turn = self._shown_until = 0  # messages of the conversation: before the turn, and shown so far
        self._turn_start = 0  # messages shown before the turn
        self.agent: Agent | None = None
        """The agent that has the turn. If it calls another agent, that agent uses its own transcript."""
        self.context: Context | None = None
        self.instructions: str | None = None
        """System prompt of the agent, fixed at the start of the conversation."""
        self.cached_tokens = 0
        """Prompt tokens that the backend did not read again, because another session has read them."""
        self.parses_calls = True
        """False if calls stay in the content, for a client that does not want tool calls."""
        self.encode_elsewhere: Callable[[int, Callable[[], Any]], Awaitable[Any]] | None = None
        """Runs work on a number of characters off the event loop, so that other conversations do not wait for it."""
        self._session = session
        self._on_token = on_token
        self._fit_reply = fit_reply  # lower max_new_tokens to the room that is left in the context
        self._raw: list[Message] = []  # as sampled: what the chat template continues
        self._shown: list[Message] = []  # with overridden replies: what the agent's prompts are compared with
        self._unread: list[int] = []
        self._length_limited = False
        self._unended = False
        self.fitted: tuple[int, list[Message], tuple[int, ...]] | None = None
        """Number of messages of this turn's first prompt, the prompt after the memory window and compression, and the
        indices that these dropped. None before the turn's first prompt."""
        self._reply: Reply | None = None
        self._failure: BaseException | None = None

    @property
    def read(self) -> int:
        """Number of tokens that the session has read or generated. Others are read with the next prompt."""
        return len(self.ids) - len(self._unread)

    def resume(
        self,
        session: Session | None,
        sampling: Sampling,
        *,
        on_token: Callable[[SampledToken], bool | None] | None = None,
        fit_reply: bool = False,
        read: int = 0,
    ) -> TokenTranscript:
        """Copy this conversation for its next turn in another session, which has the first `read` of its tokens."""
        copy = TokenTranscript(
            session,
            self.renderer,
            sampling,
            max_context=self.max_context,
            on_token=on_token,
            fit_reply=fit_reply,
        )
        copy.ids, copy.mask, copy.logprobs = list(self.ids), list(self.mask), list(self.logprobs)
        copy.turns, copy.conversation, copy.instructions = list(self.turns), list(self.conversation), self.instructions
        copy._before_turn = copy._shown_until = len(copy.conversation)
        copy._raw, copy._shown, copy._unread = list(self._raw), list(self._shown), list(self.ids[read:])
        copy._length_limited, copy._unended = self._length_limited, self._unended
        return copy

    def state(self) -> TranscriptState:
        """State after a turn, see `TokenTranscript.restored`."""
        return TranscriptState(
            renderer=self.renderer.hash,
            ids=array("i", self.ids).tobytes(),
            mask=bytes(self.mask),
            logprobs=array("d", self.logprobs).tobytes(),
            turns=tuple(self.turns),
            conversation=tuple(self.conversation),
            raw=tuple(self._raw),
            shown=tuple(self._shown),
            instructions=self.instructions,
            length_limited=self._length_limited,
            unended=self._unended,
        )

    @classmethod
    def restored(cls, state: TranscriptState, renderer: Renderer, *, max_context: int) -> TokenTranscript:
        """Transcript of a state. `resume` continues it. The renderer must be the renderer of the state."""
        unused = Sampling(temperature=1.0, max_new_tokens=1, seed=0)  # `resume` gives its own
        transcript = cls(None, renderer, unused, max_context=max_context)
        transcript.ids, transcript.logprobs = array("i", state.ids), array("d", state.logprobs)
        transcript.mask, transcript.turns = list(map(bool, state.mask)), list(state.turns)
        transcript.conversation, transcript.instructions = list(state.conversation), state.instructions
        transcript._raw, transcript._shown = list(state.raw), list(state.shown)
        transcript._length_limited, transcript._unended = state.length_limited, state.unended
        return transcript

    def release(self) -> None:
        """Drop the session and the callback, and store the tokens compactly. `resume` continues the conversation."""
        self._session, self._on_token, self._reply = None, None, None
        self.ids, self.logprobs = array("i", self.ids), array("d", self.logprobs)

    def begin_turn(self, agent: Agent, messages: Sequence[Message] = (), context: Context | None = None) -> None:
        """Start a turn of the agent, after new messages of the environment."""
        self.agent, self.context = agent, context
        self._before_turn = self._shown_until = len(self.conversation)
        self._turn_start = len(self._shown)
        self.conversation += messages
        self._reply = self.fitted = None

    async def generate(self, messages: Sequence[Message]) -> str:
        """Sample a reply to `messages` and return its text.

        Raises `PrefixMismatch` if `messages` do not extend what was read and generated so far. Raises
        `ContextLengthExceeded` if the reply might not fit. The prompt is then already recorded.
        """
        new, encode = self._encoding(messages)
        self._append_prompt(new, await self.prepare(new, encode))
        room = self.max_context - len(self.ids)
        if self._fit_reply and 0 < room < self.sampling.max_new_tokens:
            self.sampling = replace(self.sampling, max_new_tokens=room)
        if room < self.sampling.max_new_tokens:
            raise ContextLengthExceeded(
                f"the conversation has {len(self.ids)} tokens and the reply may have {self.sampling.max_new_tokens}, "
                f"together more than {self.max_context}",
                "Raise max_context, or set enable_context_compression",
            )
        prompt = Prompt(new_ids=self._unread, messages=tuple(self._shown), on_token=self._on_token)
        assert self._session is not None
        try:
            generation = await self._session.generate(prompt, self.sampling)
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):  # a client went away; keeping it would hold its request
                self._failure = error
            raise
        self.cached_tokens += generation.cached_tokens
        self._unread, self._length_limited = [], generation.stop == "length"
        self._unended = generation.stop != "stop"
        text = self.renderer.decode(generation.token_ids).strip()
        message = generation.message or self.renderer.parse_reply(generation.token_ids)
        if message.tool_calls and not self.parses_calls:
            message = self.renderer.parse_content(generation.token_ids)
        self._append_completion(message, generation)
        return text

    async def prepare(self, messages: Sequence[Message], work: Callable[[], T]) -> T:
        """Result of tokenizing `messages`, off the event loop if the transcript belongs to a server."""
        if self.encode_elsewhere is None:
            return work()
        result: T = await self.encode_elsewhere(sum(len(message.content) for message in messages), work)
        return result

    def caused(self, error: BaseException | None) -> bool:
        """Return True if an exception is the policy's, or follows from it, and so is not from the agent's own code."""
        while error is not None:
            if error is self._failure:
                return True
            error = error.__cause__
        return False

    def set_reply(self, text: str, *, reasoning: str | None = None, dropped: tuple[int, ...] = ()) -> None:
        """Set the reply of the turn as sampled, before hooks may change it."""
        sampled = self._raw[-1]
        message = sampled if reasoning is None else self.renderer.parse_text(text)
        self._replace_last(message)
        self._reply = Reply(
            message=message,
            text=text,
            as_sampled=True,
            length_limited=self._length_limited,
            reasoning=reasoning,
            dropped=dropped,
        )

    def reply_message(self, text: str) -> Message:
        """Message of a reply: the sampled message if the text is unchanged, else the parsed text."""
        reply = self._reply
        return reply.message if reply is not None and reply.text == text else self.renderer.parse_text(text)

    def add_messages(self, *messages: Message) -> None:
        """Add a call of the agent's own tool and its result, between two generations of one turn."""
        self.conversation += messages

    def end_turn(self, text: str, messages: Sequence[Message]) -> Reply:
        """End the turn with `text` as the reply to `messages`, sampled by the policy or not."""
        reply = self._reply
        if reply is None or reply.text != text:
            message = self.renderer.parse_text(text)
            if reply is None:
                self._insert_unsampled(message, messages)
            else:
                self._mask_out(message)
            reply = Reply(message=message, text=text, as_sampled=False, length_limited=False)
        self.conversation.append(reply.message)
        return reply

    def _encoding(self, messages: Sequence[Message]) -> tuple[list[Message], Encode]:
        """Messages that are new, and the function that encodes them. Raises `PrefixMismatch`."""
        count, new = len(self._shown), self._new_of(messages)
        if not new:
            raise PrefixMismatch(
                f"the agent's prompt of {len(messages)} messages does not extend the {count} messages that the policy "
                "has read and generated in this conversation. The tokens of a conversation cannot change, so let "
                "process_turn and generate_response pass the history on unchanged, or add the same prefix each time"
            )
        renderer, raw = self.renderer, list(self._raw)
        if not count:
            return new, lambda: renderer.build_prompt(new)
        added = [renderer.stop_id] if self._unended else []  # the stop token that was not generated
        ended_by = (*self.ids[-1:], *added)[-1]
        return new, lambda: [*added, *renderer.build_continuation(raw, new, ended_by=ended_by)]

    def _append_prompt(self, new: Sequence[Message], ids: Sequence[int]) -> None:
        """Record the tokens of the new messages. The last message gets the whole span, the others an empty one.

        Raises `PolicyError` if the renderer returned anything but token ids.
        """
        if not isinstance(ids, Sequence) or not ids or not all(isinstance(token, int) and token >= 0 for token in ids):
            name = type(self.renderer).__name__
            raise PolicyError(f"the renderer {name} returned {ids!r:.80} for a prompt. Return a list of token ids")
        self._remember_shown(new)
        self._length_limited = self._unended = False
        start, stop = len(self.ids), len(self.ids) + len(ids)
        self.turns += [Turn(message=message, start=start, stop=start) for message in new[:-1]]
        self.turns.append(Turn(message=new[-1], start=start, stop=stop))
        self.ids += ids
        self.mask += [False] * len(ids)
        self.logprobs += [0.0] * len(ids)
        self._unread += ids
        self._raw += new
        self._shown += new

    def _new_of(self, messages: Sequence[Message]) -> list[Message]:
        """Messages of a prompt that the policy has not read, or none if the prompt does not extend what it has read.

        A prompt begins with all messages that were shown, or with the history that its hook got and all that was shown
        since then.
        """
        count = len(self._shown)
        if _templates(messages[:count]) == _templates(self._shown):
            return list(messages[count:])
        start = int(self._shown[0].role == "system")
        if _templates(messages[:start]) != _templates(self._shown[:start]):
            return []
        history = [message for message in self.conversation[: self._before_turn] if message.role != "system"]
        read = [*history, *self._shown[self._turn_start :]]
        stop = start + len(read)
        return list(messages[stop:]) if _templates(messages[start:stop]) == _templates(read) else []

    def _remember_shown(self, new: Sequence[Message]) -> None:
        """Replace the new messages of the conversation by the shown ones, paired from the last backwards."""
        for position in range(1, min(len(new), len(self.conversation) - self._shown_until) + 1):
            given, shown = self.conversation[-position], new[-position]
            if given.role != shown.role or given.role not in ("user", "tool"):
                break
            self.conversation[-position] = shown
        self._shown_until = len(self.conversation)

    def _append_completion(self, message: Message, generation: Generation) -> None:
        """Record generated tokens, with NaN for log-probabilities that the backend does not return."""
        count = len(generation.token_ids)
        self.turns.append(Turn(message=message, start=len(self.ids), stop=len(self.ids) + count))
        self.ids += generation.token_ids
        self.mask += [True] * count
        self.logprobs += [math.nan] * count if generation.logprobs is None else generation.logprobs
        self._raw.append(message)
        self._shown.append(message)

    def _replace_last(self, message: Message) -> None:
        last = self.turns[-1]
        self.turns[-1] = Turn(message=message, start=last.start, stop=last.stop)
        self._shown[-1] = message

    def _mask_out(self, message: Message) -> None:
        """Replace the last reply by an overridden one. Its tokens stay in the context, but leave the loss mask."""
        self._replace_last(message)
        for position in range(self.turns[-1].start, self.turns[-1].stop):
            self.mask[position], self.logprobs[position] = False, 0.0

    def _insert_unsampled(self, message: Message, messages: Sequence[Message]) -> None:
        """Record a reply that was not sampled. The policy reads its tokens with the next prompt."""
        new, encode = self._encoding(messages)
        self._append_prompt(new, encode())
        ids = self.renderer.encode_reply(message, self._raw)
        self._append_completion(message, Generation(token_ids=ids, logprobs=None, stop="stop"))
        self._unread += ids
        self._mask_out(message)


def _templates(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [message.to_template() for message in messages]


current_transcript: ContextVar[TokenTranscript | None] = ContextVar("transcript", default=None)
"""Transcript of the turn in progress, which overridden hooks of an agent reach without a parameter."""
