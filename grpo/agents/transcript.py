"""Who has the floor: one conversation with a policy, and all tokens that it read and said, in order.

A session only ever reads on, so a conversation can only grow. What an agent's own code makes of the reply is kept
apart from what was sampled:

    turns       P | A1        P A1 E | A2 A2      A2 was reworded after sampling
    token_ids   P   A1   E   A2 A2                the policy's own words, both times
    loss_mask   .   x    .   .  .                 nothing is learned from words that were not the reply
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

from grpo.agents.agent import Agent, Context, to_chat
from grpo.errors import PolicyError
from grpo.messages import Message, parse_assistant
from grpo.policy.policy import Generation, Prompt, Sampling, Session
from grpo.renderers.chat_template import Renderer
from grpo.trajectories import Turn


class ContextLengthExceeded(PolicyError):
    """The conversation has grown so long that the policy may not answer any more."""


class PrefixMismatch(PolicyError):
    """The policy was to read another past than it has read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One turn of an agent, as everybody but its policy sees it."""

    message: Message
    text: str
    as_sampled: bool
    """False where the agent's own code changed or wrote the text: the turn is not trained on."""
    cut: bool
    """The turn reached max_new_tokens."""
    reasoning: str | None = None
    dropped: tuple[int, ...] = ()
    """Messages that the policy did not see, by their place in the conversation."""


class TokenTranscript:
    """The token record of one conversation, and the session that speaks in it."""

    def __init__(
        self,
        session: Session,
        renderer: Renderer,
        sampling: Sampling,
        *,
        max_context: int,
        on_token: Callable[[int], None] | None = None,
    ) -> None:
        self.renderer = renderer
        self.sampling = sampling
        self.max_context = max_context
        self.ids: list[int] = []
        self.mask: list[bool] = []
        self.logprobs: list[float] = []
        self.turns: list[Turn] = []
        self.conversation: list[Message] = []
        """What agent and world have said to each other, the agent's own tools included."""
        self.speaker: Agent | None = None
        """Whose turn it is: another agent that it asks for help speaks elsewhere."""
        self.context: Context | None = None
        self.instructions: str | None = None
        """The agent's system prompt: as it was when the conversation began."""
        self._session = session
        self._listener = on_token
        self._read: list[Message] = []
        self._shown: list[Message] = []
        self._unread: list[int] = []
        self._cut = False
        self._spoken: Reply | None = None

    def begin_turn(self, speaker: Agent, messages: Sequence[Message] = (), context: Context | None = None) -> None:
        """The world has said this; a turn of the agent begins."""
        self.speaker, self.context = speaker, context
        self.conversation += messages
        self._spoken = None

    async def generate(self, messages: Sequence[Message]) -> str:
        """Let the policy answer; returns what it said.

        Raises `PrefixMismatch` where `messages` do not begin with all that was read and said so far, `ContextLengthExceeded`
        where the answer might not fit; what was read is then in the record.
        """
        self._append_prompt(messages)
        if self.max_context - len(self.ids) < self.sampling.max_new_tokens:
            raise ContextLengthExceeded(
                f"the conversation has {len(self.ids)} tokens and the reply may have {self.sampling.max_new_tokens}, "
                f"together more than {self.max_context}; raise max_context, or set enable_context_compression"
            )
        prompt = Prompt(new_ids=self._unread, messages=tuple(messages), on_token=self._listener)
        said = await self._session.generate(prompt, self.sampling)
        self._unread, self._cut = [], said.stop == "length"
        text = self.renderer.decode(said.token_ids).strip()
        self._append_completion(said.message or parse_assistant(text), said)
        return text

    def set_reply(self, text: str, *, reasoning: str | None = None, dropped: tuple[int, ...] = ()) -> None:
        """What the agent makes of what was just said, before its own code may change it."""
        said = self._read[-1]
        message = said if reasoning is None else parse_assistant(text)
        self._replace_last(message)
        self._spoken = Reply(
            message=message, text=text, as_sampled=True, cut=self._cut, reasoning=reasoning, dropped=dropped
        )

    def add_messages(self, *messages: Message) -> None:
        """Something between two answers of one turn: a call, and what the agent's own tool said."""
        self.conversation += messages

    def end_turn(self, text: str, heard: Sequence[Message]) -> Reply:
        """The agent's turn is over: `text` is its reply to `heard`, whether its policy sampled it or not."""
        reply = self._spoken
        if reply is None or reply.text != text:
            message = parse_assistant(text)
            if reply is None:
                self._insert_unsampled(message, heard)
            else:
                self._mask_out(message)
            reply = Reply(message=message, text=text, as_sampled=False, cut=False)
        self.conversation.append(reply.message)
        return reply

    def _append_prompt(self, messages: Sequence[Message]) -> None:
        """Read what is new; its tokens belong to the last message, the others have no span."""
        count = len(self._shown)
        if list(map(to_chat, messages[:count])) != list(map(to_chat, self._shown)) or len(messages) == count:
            raise PrefixMismatch(
                f"the agent asks its policy to answer {len(messages)} messages which do not go on from the {count} "
                "that it has read and said in this conversation; tokens that were read stay read: let "
                "process_turn and generate_response pass the conversation on as it is, or add the same to its "
                "beginning each time"
            )
        new = list(messages[count:])
        ids = self.renderer.build_continuation(self._read, new) if count else self.renderer.build_prompt(new)
        if self._cut:  # the stop token that the policy did not say is read to it
            ids = [self.renderer.stop_id, *ids]
            self._cut = False
        start, stop = len(self.ids), len(self.ids) + len(ids)
        self.turns += [Turn(message=message, start=start, stop=start) for message in new[:-1]]
        self.turns.append(Turn(message=new[-1], start=start, stop=stop))
        self.ids += ids
        self.mask += [False] * len(ids)
        self.logprobs += [0.0] * len(ids)
        self._unread += ids
        self._read += new
        self._shown += new

    def _append_completion(self, message: Message, said: Generation) -> None:
        """Tokens that the policy said; NaN where it cannot tell how likely they were."""
        count = len(said.token_ids)
        self.turns.append(Turn(message=message, start=len(self.ids), stop=len(self.ids) + count))
        self.ids += said.token_ids
        self.mask += [True] * count
        self.logprobs += [math.nan] * count if said.logprobs is None else said.logprobs
        self._read.append(message)
        self._shown.append(message)

    def _replace_last(self, message: Message) -> None:
        last = self.turns[-1]
        self.turns[-1] = Turn(message=message, start=last.start, stop=last.stop)
        self._shown[-1] = message

    def _mask_out(self, message: Message) -> None:
        """The last answer was reworded: its tokens stay read, and nothing is learned from them."""
        self._replace_last(message)
        for position in range(self.turns[-1].start, self.turns[-1].stop):
            self.mask[position], self.logprobs[position] = False, 0.0

    def _insert_unsampled(self, message: Message, heard: Sequence[Message]) -> None:
        """The agent answered without its policy, which reads the words before it speaks again."""
        self._append_prompt(heard)
        ids = self.renderer.encode_reply(message)
        self._append_completion(message, Generation(token_ids=ids, logprobs=None, stop="stop"))
        self._unread += ids
        self._mask_out(message)


current_transcript: ContextVar[TokenTranscript | None] = ContextVar("floor", default=None)
"""The floor of the turn that is being spoken: how overrides of an agent reach it without knowing of it."""
