"""Grammars that constrain a reply, by llguidance: each step has a mask of the tokens that the grammar allows next.

Comparison of libraries with a mask per step, measured with 64 streams and a vocabulary of 780 (one core, others busy):

                     llguidance      xgrammar                      outlines-core
    compile          0 ms (lazy)     6 ms                          8 ms
    64 masks         3.0 ms          .3 ms                         .9 ms
    schema keywords  refuses what    ignores several that it       regular expressions only: no recursion,
                     it cannot keep  cannot keep                   grows with every bound
    needs            nothing         PyTorch, Triton               nothing

llguidance is used because only it is exact: an unknown keyword is an error that names it. It limits its own work by
fuel, and reads byte-level and SentencePiece vocabularies. A grammar may mix control tokens of a chat template with JSON
schemas, which calls of tools need. Its masks are computed while the forward pass runs, see
`grpo.policy.transformers.sampling.token_masks`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from grpo.errors import PolicyError
from grpo.policy.reply_ends import ReplyEnds

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

COMPILED_BYTES = 24 * 2**20
"""Largest grammar that a server gives to its engine, see `grpo.serving.requests.grammar_process`."""
_STATES_BYTES = 40 * 2**20
"""Memory that a grammar's lexer states may take while replies are sampled, measured with schemas of `multipleOf`."""
_KEPT_BYTES = 512 * 2**20
"""Memory of all compiled grammars that are kept. Ordinary ones take less than 1 MiB each."""
_KEPT = _KEPT_BYTES // (COMPILED_BYTES + _STATES_BYTES)
"""Number of compiled grammars that are kept. Each is counted as the largest, because llguidance does not tell its size.
An ordinary grammar that was dropped is compiled again in a few milliseconds."""
_LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=30_000,
    step_max_items=50_000,
    max_lexer_states=20_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)
"""Limits for a grammar from a stranger: about 5 ms per mask, and 40 MiB for its states.

With more fuel for a step, numbers of `{"multipleOf": 1234.567}` take up to 100 ms per mask and 105 MiB.

The work before the first mask has no limit: `{"type": "integer", "multipleOf": 200003}` takes 1 s and 82 MiB, and 14
patterns that a text has to match all take 14 s and 1 GB until they are refused, and each further pattern several times
as much. So a server tries a grammar first in a process with bounds on time and memory, see
`grpo.serving.requests.grammar_process`. To compile it here takes the same time and memory again.
"""


class GrammarError(PolicyError):
    """Raised if a grammar cannot be compiled, or if a mask takes more work than the limits allow."""


def vocabulary_text(tokenizer: PreTrainedTokenizerBase) -> str:
    """A fast tokenizer as the JSON that llguidance reads, without padding and truncation."""
    backend = copy(tokenizer.backend_tokenizer)
    backend.no_padding()
    backend.no_truncation()
    text: str = backend.to_str()
    return text


def read_vocabulary(text: str, stop_ids: Collection[int]) -> LLTokenizer:
    """Vocabulary of a tokenizer. Takes a second for 150,000 tokens."""
    return LLTokenizer(text, eos_token=sorted(stop_ids))


def compile_grammar(vocabulary: LLTokenizer, grammar: str) -> LLMatcher:
    """Matcher of a grammar, with its first mask. Raises `GrammarError`."""
    matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=_LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    if matcher.is_error():
        raise GrammarError(matcher.get_error().strip())
    matcher.reset()
    return matcher


class Grammars:
    """Compiled grammars of a tokenizer. `stop_ids` are the tokens that end a turn if the grammar allows an end.

    Any thread may call the methods. The first grammar takes a second longer, because a vocabulary of 150,000 tokens is
    read.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop_ids: Collection[int]) -> None:
        self._tokenizer, self._stop_ids = tokenizer, stop_ids
        self._vocabulary: LLTokenizer | None = None
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    @cached_property
    def ends(self) -> ReplyEnds:
        """Ends of replies that their limit of tokens would cut off."""
        return ReplyEnds(self._read_vocabulary())

    @property
    def vocabulary_size(self) -> int:
        """Tokens of the masks."""
        return int(self._read_vocabulary().vocab_size)

    def is_compiled(self, grammar: str) -> bool:
        """True if the grammar is compiled, so that `matcher` returns at once."""
        with self._lock:
            return grammar in self._compiled

    def compile(self, grammar: str) -> None:
        """Compile a grammar, which may take some hundred milliseconds. Raises `GrammarError`."""
        if not self.is_compiled(grammar):
            matcher = compile_grammar(self._read_vocabulary(), grammar)
            with self._lock:
                self._compiled[grammar] = matcher
                if len(self._compiled) > _KEPT:
                    self._compiled.popitem(last=False)

    def matcher(self, grammar: str) -> LLMatcher:
        """New matcher, at the beginning of a turn. Raises `GrammarError`."""
        self.compile(grammar)
        with self._lock:
            self._compiled.move_to_end(grammar)
            return self._compiled[grammar].deep_copy()

    def _read_vocabulary(self) -> LLTokenizer:
        if self._vocabulary is None:
            self._vocabulary = read_vocabulary(vocabulary_text(self._tokenizer), self._stop_ids)
        return self._vocabulary
