"""Ids that the server gives out, which prove to whom they belong without a look-up.

    conversation   nonce | tag of (nonce, key) | seal of both       40 characters
    turn           nonce | tag of (nonce, conversation)             32 characters, "-1" for the second choice

Because tags are made with the salt of the log, feedback on an invented id, or on the conversation of another key, is
refused without searching the log. This also works after a restart, and in every process that serves the same log.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets

_NONCE, _TAG, _SEAL = 12, 8, 5  # bytes
_CHOICE = re.compile(r"-[0-9]{1,4}$")


class ServingIds:
    """Ids of one log. `secret` is the log's salt."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def new_conversation(self, owner: str, name: str | None = None) -> str:
        """Make an id for a conversation of the caller with this key hash.

        If the caller has a name for the conversation, the id is always the same for this name.
        """
        nonce = self._nonce("named", f"{owner}\0{name}") if name is not None else secrets.token_bytes(_NONCE)
        tagged = nonce + self._tag("owner", nonce, owner)
        return _encode(tagged + self._tag("seal", tagged, "")[:_SEAL])

    def new_turn(self, conversation_id: str, name: str | None = None) -> str:
        """Make an id for a turn of a conversation, to which the index of a choice may be appended.

        If the turn has a name in the conversation, the id is always the same for this name.
        """
        nonce = self._nonce("turn", f"{conversation_id}\0{name}") if name is not None else secrets.token_bytes(_NONCE)
        return _encode(nonce + self._tag("turn", nonce, conversation_id))

    def is_conversation(self, id: str) -> bool:
        """True if this is the id of a conversation, of any key."""
        content = _decode(id, _NONCE + _TAG + _SEAL)
        tagged, seal = content[: _NONCE + _TAG], content[_NONCE + _TAG :]
        return bool(content) and hmac.compare_digest(seal, self._tag("seal", tagged, "")[:_SEAL])

    def owns(self, owner: str, conversation_id: str) -> bool:
        """True if this is the id of a conversation of this caller."""
        content = _decode(conversation_id, _NONCE + _TAG + _SEAL)
        nonce, tag = content[:_NONCE], content[_NONCE : _NONCE + _TAG]
        own = hmac.compare_digest(tag, self._tag("owner", nonce, owner))
        return self.is_conversation(conversation_id) and own

    def is_turn(self, turn_id: str, conversation_id: str) -> bool:
        """True if this is the id of a turn of this conversation, or of one of the turn's choices."""
        content = _decode(_CHOICE.sub("", turn_id), _NONCE + _TAG)
        nonce, tag = content[:_NONCE], content[_NONCE:]
        return bool(content) and hmac.compare_digest(tag, self._tag("turn", nonce, conversation_id))

    def _tag(self, kind: str, nonce: bytes, of: str) -> bytes:
        return self._digest(kind, nonce + of.encode(errors="surrogatepass"), _TAG)

    def _nonce(self, kind: str, name: str) -> bytes:
        """Nonce of a name, which differs between logs, so that it does not tell the name."""
        return self._digest(f"{kind} nonce", name.encode(errors="surrogatepass"), _NONCE)

    def _digest(self, kind: str, content: bytes, size: int) -> bytes:
        return hashlib.blake2b(content, key=self._secret, person=kind.encode(), digest_size=size).digest()


def turn_of(response_id: str) -> str:
    """Id of a turn, from the id of its response in either API."""
    return response_id.removeprefix("chatcmpl-").removeprefix("resp_")


def _encode(content: bytes) -> str:
    return base64.b32encode(content).decode().lower()


def _decode(id: str, size: int) -> bytes:
    """Bytes of an id, or none if the text is not an id, e.g. an id in capitals, which would be a second name for it."""
    try:
        content = base64.b32decode(id.upper())
    except ValueError:
        return b""
    return content if len(content) == size and _encode(content) == id else b""
