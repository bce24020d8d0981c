"""Encoding of rendered text in which only the template's own control tokens are control tokens.

    pieces    "<|user|>" of the template   "<|end|> hi" of a user   "<|end|>" of the template
    encoded   <|user|>  <|  end  |>  ▁hi  <|end|>

The text is encoded as a whole, so that a token may span text of the template and text of a user. If the tokenizer reads
a control token in a user's text, a separator cuts that text. Only the encoder knows the separator token, and it is
removed afterwards.

A tokenizer that lacks bytes for some characters reads an unknown character as its unknown token, e.g. <unk>, and the
model expects that. This is not a forged control token, although the token is special. The text "<unk>" itself is one.
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
"""Nothing stands before the text ("first"), a control token does ("after"), or it continues a text ("inside")."""
_Segment = tuple[str, str, Place]
"""Text, one flag per character ("1" if it is trusted, else "0"), and its place."""
_SEPARATOR = "\ue002"
_REPLACEMENT = "\ufffd"
_ELEMENT = re.compile(r"</?[a-z]+\d?>")
"""Markup that some vocabularies have as tokens, e.g. `<h1>`. It is a control token only if the template prints it."""
_MARKED = re.compile(r"<\S.*>|\[\S.*\]", re.DOTALL)
_REASONING = ("<think>", "</think>", "<tool_call>", "</tool_call>")
_PASSES = 8
"""Passes that cut control tokens. If a text still has one after them, it is read character by character."""
_CACHED_CHARACTERS = 2**20
"""Limit of the cache, in characters of its segments, because texts of users can have any length."""


def control_tokens(tokenizer: PreTrainedTokenizerBase, template: str) -> frozenset[str]:
    """Control tokens: tokens that text of a user or a tool must not become.

    These are all special tokens, and added tokens in brackets, because model families use those for tools and
    reasoning. Markup is included only if the template prints it. Runs of white space and other fragments of text that
    some tokenizers add are not included.
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
    """Thread-safe encoder of text with trusted and untrusted pieces, for one tokenizer.

    The constructor raises `PolicyError` if the tokenizer has no fast backend. `encode` raises `UnicodeEncodeError` if
    a text contains half of a surrogate pair, because no tokenizer reads it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, controls: frozenset[str]) -> None:
        from tokenizers import AddedToken, Tokenizer

        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise PolicyError(f"tokenizer of {tokenizer.name_or_path!r} is not a fast tokenizer. Add tokenizer.json")
        # copies, because transformers toggles a flag of the tokenizer's single backend, which is not thread-safe
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
        """Token ids of pieces `(text, is_trusted)`; `place` says what stands before the first piece."""
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
        """Token ids of a segment, from the cache if it was encoded recently."""
        ids = self._segments.get((text, trusted, place))
        if ids is None:
            ids = self._encode(text, trusted, place)
            self._segments.put((text, trusted, place), ids)
        return ids

    def _encode(self, text: str, trusted: str, place: Place) -> array[int]:
        """Token ids of a segment. Each pass cuts the control tokens that it reads in untrusted text.

        If control tokens are left after `_PASSES` passes, every untrusted character is encoded apart. A single
        character that is still a control token is then left out.
        """
        encoder = self._inside if place == "inside" else self._encoder
        if place != "first":  # some tokenizers put a space before the first token only
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
        """Token ids of a text without its forged control tokens, and the spans of the forged ones."""
        (encoding,) = encoder.encode_batch([text], add_special_tokens=False)  # without the interpreter's lock
        ids, forged = array("i"), list[tuple[int, int]]()
        for id_, span in zip(encoding.ids, encoding.offsets, strict=True):
            if id_ in self._control_ids and self._is_forged(text, trusted, span, id_):
                forged.append(span)
            elif id_ != self._separator_id:
                ids.append(id_)
        return ids, forged

    def _is_forged(self, text: str, trusted: str, span: tuple[int, int], id_: int) -> bool:
        """True if a character of a control token is untrusted. White space that the token absorbed does not count."""
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
    """Thread-safe cache of segments' token ids. Above `_CACHED_CHARACTERS` it drops the least recently used."""

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
    """Encoder that all renderers of a tokenizer share, because it holds copies of the vocabulary and their caches."""
    known = _ENCODERS.get(tokenizer)
    if known is None or known[:2] != (controls, len(tokenizer)):
        known = _ENCODERS[tokenizer] = controls, len(tokenizer), TextEncoder(tokenizer, controls)
    return known[2]


def _unbounded(encoder: Tokenizer) -> Tokenizer:
    encoder.no_truncation()
    encoder.no_padding()
    return encoder


def _without(definition: str, controls: frozenset[str]) -> str:
    """Definition of a tokenizer without the added tokens in `controls`, and without its post-processor."""
    record = json.loads(definition)
    record["added_tokens"] = [token for token in record["added_tokens"] if token["content"] not in controls]
    record["post_processor"] = None
    return json.dumps(record)


def _without_prefix(definition: str) -> str | None:
    """Definition that puts no space before a text, or None if the tokenizer never puts one.

    Legacy SentencePiece puts a space after each control token. A text that continues another one must not get it, e.g.
    a reply after the line `<|im_start|>assistant`.
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
    """Token that the tokenizer's model gives for unknown text, or None if the template also uses that token.

    In the latter case unknown text would read as a control token, e.g. the end of a turn, so it is left out.
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
    """Control tokens that absorb no white space, so that cutting a text before them does not change its tokens."""
    plain = [
        token.content
        for token in tokenizer.added_tokens_decoder.values()
        if token.content in controls and not (token.lstrip or token.rstrip or token.single_word or token.normalized)
    ]
    return any_of(plain)


def any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Regular expression that matches any of the texts, and prefers a longer one."""
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
