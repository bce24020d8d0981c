"""Encoding of rendered text in which only the template's own control tokens are control tokens.

    pieces    "<|user|>" of the template   "<|end|> hi" of a user   "<|end|>" of the template
    encoded   <|user|>  <|  end  |>  ▁hi  <|end|>

The text is encoded as a whole, so that tokens may span a template's text and a user's. A control token that the
tokenizer reads in a user's text is cut by a separator, a token of the encoder alone, which is removed afterwards.

A tokenizer without bytes for every character reads an unknown one as its unknown token, such as <unk>, and so does the
model. That is not a forged control token, although the token is special; the text "<unk>" itself is one.
"""

from __future__ import annotations

import json
import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from grpo.errors import PolicyError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

Place = Literal["first", "after", "inside"]
"""What stands before a text: nothing, a control token, or a text that goes on."""
_Segment = tuple[str, str, Place]
"""Text, a flag for each character that is trusted, and its place."""
_SEPARATOR = "\ue002"
_REPLACEMENT = "\ufffd"
_ELEMENT = re.compile(r"</?[a-z]+\d?>")
"""Markup that some vocabularies have as tokens, such as `<h1>`; a control token only where a template prints it."""
_MARKED = re.compile(r"<\S.*>|\[\S.*\]", re.DOTALL)
_REASONING = ("<think>", "</think>", "<tool_call>", "</tool_call>")
_PASSES = 8
"""Passes that cut control tokens; text in which there is still one is then read character by character."""
_CACHED_CHARACTERS = 2**20
"""Characters of the segments whose tokens are kept: texts of users are unbounded."""


def control_tokens(tokenizer: PreTrainedTokenizerBase, template: str) -> frozenset[str]:
    """Control tokens, which text of a user or a tool must not become.

    All special tokens, and added tokens in brackets, which families use for tools and reasoning. Markup is among them
    if the template prints it; runs of white space and other fragments of text, which some tokenizers add, are not.
    """
    controls: set[str] = set()
    for token in tokenizer.added_tokens_decoder.values():
        marked = _MARKED.fullmatch(token.content)
        if token.special or (
            marked and (token.content in template or token.content in _REASONING or not _ELEMENT.fullmatch(marked[0]))
        ):
            controls.add(token.content)
    return frozenset(controls)


class TextEncoder:
    """Encoder of text with trusted and untrusted pieces, for one tokenizer; safe for threads.

    Raises `PolicyError` for a tokenizer without a fast backend, and `encode` a `UnicodeEncodeError` for half of a
    surrogate pair, which no tokenizer reads.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, controls: frozenset[str]) -> None:
        from tokenizers import AddedToken, Tokenizer

        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise PolicyError(f"tokenizer of {tokenizer.name_or_path!r} is not a fast tokenizer; add tokenizer.json")
        # transformers toggles a flag of the tokenizer's single backend, which is not thread-safe: copies
        definition = backend.to_str()
        self._encoder = _unbounded(Tokenizer.from_str(definition))
        self._plain = _unbounded(Tokenizer.from_str(_without(definition, controls)))
        self._plain.encode_special_tokens = True
        unprefixed = _without_prefix(definition)
        self._inside = self._encoder if unprefixed is None else _unbounded(Tokenizer.from_str(unprefixed))
        for encoder in (self._encoder, self._inside):
            encoder.encode_special_tokens = False
            encoder.add_tokens([AddedToken(_SEPARATOR, normalized=False)])
        self._separator_id = self._encoder.token_to_id(_SEPARATOR)
        self._control_ids = {int(tokenizer.convert_tokens_to_ids(token)): token for token in controls}
        unknown = _unknown_token(tokenizer, definition)
        self._unknown_id = None if unknown is None else self._encoder.token_to_id(unknown)
        self._boundary = _boundaries(tokenizer, controls)
        self._segments = _Segments()

    def encode(self, pieces: Sequence[tuple[str, bool]], *, place: Place) -> list[int]:
        """Token ids of pieces, each with whether it is trusted; `place` is where they stand."""
        text = "".join(piece for piece, _ in pieces)
        text.encode()
        trusted = "".join(("1" if of_template else "0") * len(piece) for piece, of_template in pieces)
        if _SEPARATOR in text:
            trusted = "".join(flag for flag, character in zip(trusted, text, strict=True) if character != _SEPARATOR)
            text = text.replace(_SEPARATOR, "")
        starts = [match.start() for match in self._boundary.finditer(text) if trusted[match.start()] == "1"]
        cuts = sorted({0, *starts, len(text)})
        ids: list[int] = []
        for start, stop in pairwise(cuts):
            begins = start == 0 and (place == "first" or 0 not in starts)
            ids += self._encode_segment(text[start:stop], trusted[start:stop], place if begins else "after")
        return ids

    def _encode_segment(self, text: str, trusted: str, place: Place) -> array[int]:
        """Token ids of a segment, those of the last ones from memory."""
        ids = self._segments.get((text, trusted, place))
        if ids is None:
            ids = self._encode(text, trusted, place)
            self._segments.put((text, trusted, place), ids)
        return ids

    def _encode(self, text: str, trusted: str, place: Place) -> array[int]:
        """Token ids of a segment; each pass cuts the control tokens that it reads in untrusted text.

        After `_PASSES` untrusted characters stand apart, and a control token that one of them still is, is left out.
        """
        encoder = self._inside if place == "inside" else self._encoder
        if place != "first":  # some tokenizers put a space before the first token alone
            text, trusted = _SEPARATOR + text, "1" + trusted
        for _ in range(_PASSES):
            ids, forged = self._read(text, trusted, encoder)
            if not forged:
                return ids
            before = text
            for start, stop in reversed(forged):
                cut = self._cut(text[start:stop])
                text = text[:start] + cut + text[stop:]
                trusted = trusted[:start] + "0" * len(cut) + trusted[stop:]
            if text == before:
                break
        apart = [f"{_SEPARATOR}{c}" if flag == "0" else c for c, flag in zip(text, trusted, strict=True)]
        flags = "".join("0" * len(piece) if piece[0] == _SEPARATOR else "1" for piece in apart)
        return self._read("".join(apart), flags, encoder)[0]

    def _read(self, text: str, trusted: str, encoder: Tokenizer) -> tuple[array[int], list[tuple[int, int]]]:
        """Token ids of a text without its forged control tokens, and the spans of these."""
        (encoding,) = encoder.encode_batch([text], add_special_tokens=False)  # without the interpreter's lock
        ids, forged = array("i"), list[tuple[int, int]]()
        for id_, span in zip(encoding.ids, encoding.offsets, strict=True):
            if id_ in self._control_ids and self._is_forged(text, trusted, span, id_):
                forged.append(span)
            elif id_ != self._separator_id:
                ids.append(id_)
        return ids, forged

    def _is_forged(self, text: str, trusted: str, span: tuple[int, int], id_: int) -> bool:
        """Check that the characters of a control token are not all the template's; white space beside it may be."""
        (start, stop), token = span, self._control_ids[id_]
        inside = text.find(token, start, stop)
        if inside < 0 and id_ == self._unknown_id:
            return False
        if inside >= 0:
            start, stop = inside, inside + len(token)
        return "0" in trusted[start:stop]

    def _cut(self, text: str) -> str:
        """Text with separators between its ordinary tokens."""
        if len(text) == 1:
            return _REPLACEMENT
        starts = sorted({start for start, _ in self._plain.encode(text, add_special_tokens=False).offsets} - {0})
        cuts = [0, *(starts or [1]), len(text)]
        return _SEPARATOR.join(text[start:stop] for start, stop in pairwise(cuts))


class _Segments:
    """Token ids of segments, the least recently used dropped above a number of characters; safe for threads."""

    def __init__(self) -> None:
        self._ids: OrderedDict[_Segment, array[int]] = OrderedDict()
        self._characters = 0
        self._lock = threading.Lock()

    def get(self, segment: _Segment) -> array[int] | None:
        with self._lock:
            ids = self._ids.get(segment)
            if ids is not None:
                self._ids.move_to_end(segment)
            return ids

    def put(self, segment: _Segment, ids: array[int]) -> None:
        with self._lock:
            if segment in self._ids or len(segment[0]) > _CACHED_CHARACTERS:
                return
            self._ids[segment] = ids
            self._characters += len(segment[0])
            while self._characters > _CACHED_CHARACTERS:
                (text, _, _), _ = self._ids.popitem(last=False)
                self._characters -= len(text)


_ENCODERS: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[frozenset[str], int, TextEncoder]] = WeakKeyDictionary()


def text_encoder(tokenizer: PreTrainedTokenizerBase, controls: frozenset[str]) -> TextEncoder:
    """Encoder of a tokenizer, which all its renderers share: it has two copies of the vocabulary, and their caches."""
    known = _ENCODERS.get(tokenizer)
    if known is None or known[:2] != (controls, len(tokenizer)):
        known = _ENCODERS[tokenizer] = controls, len(tokenizer), TextEncoder(tokenizer, controls)
    return known[2]


def _unbounded(encoder: Tokenizer) -> Tokenizer:
    encoder.no_truncation()
    encoder.no_padding()
    return encoder


def _without(definition: str, controls: frozenset[str]) -> str:
    """Definition of a tokenizer without these added tokens."""
    record = json.loads(definition)
    record["added_tokens"] = [token for token in record["added_tokens"] if token["content"] not in controls]
    record["post_processor"] = None
    return json.dumps(record)


def _without_prefix(definition: str) -> str | None:
    """Definition of a tokenizer that puts no space before a text; None for one that puts none after control tokens.

    Legacy SentencePiece does so after each of them. A text that goes on after others, as a reply does after the line
    `<|im_start|>assistant`, has none.
    """
    record = json.loads(definition)
    steps = ("normalizer", "pre_tokenizer")
    changed = record | {step: _unprefixed(record.get(step)) for step in steps}
    return None if changed == record else json.dumps(changed)


def _unprefixed(step: Any) -> Any:
    """A step of a tokenizer, or the steps in it, without a prefix."""
    if not isinstance(step, dict) or step.get("type") == "Prepend":
        return None
    kept = {
        key: [part for part in map(_unprefixed, value) if part is not None] if isinstance(value, list) else value
        for key, value in step.items()
    }
    if kept.get("prepend_scheme") == "always":
        kept["prepend_scheme"] = "never"
    if kept.get("type") == "ByteLevel":
        kept["add_prefix_space"] = False
    return kept


def _unknown_token(tokenizer: PreTrainedTokenizerBase, definition: str) -> str | None:
    """Token that the tokenizer's model gives for unknown text; None where the token is also one of the template.

    In the latter case unknown text would be a control token, such as the end of a turn, and is left out.
    """
    model = json.loads(definition)["model"]
    unknown = model.get("unk_token")
    if isinstance(model.get("unk_id"), int):
        unknown = model["vocab"][model["unk_id"]][0]
    template = tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else ""
    if not unknown or unknown in (tokenizer.bos_token, tokenizer.eos_token) or unknown in template:
        return None
    return str(unknown)


def _boundaries(tokenizer: PreTrainedTokenizerBase, controls: frozenset[str]) -> re.Pattern[str]:
    """Control tokens before which text can be cut without another result: those that take no white space with them."""
    plain = [
        token.content
        for token in tokenizer.added_tokens_decoder.values()
        if token.content in controls and not (token.lstrip or token.rstrip or token.single_word or token.normalized)
    ]
    return any_of(plain)


def any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Regular expression of any of these texts, a longer one first."""
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
