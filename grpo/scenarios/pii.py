"""PII detection by rules: spans in texts, and values under personal keys in records.

    email         anna@example.org
    iban          DE89 3704 0044 0532 0130 00                 with valid check digits (mod 97)
    card          4111 1111 1111 1111                         13 to 19 digits with a valid check digit (Luhn)
    national id   536-90-4399
    ip            192.0.2.17, 2001:db8::17
    phone         +49 30 901820, (415) 555-0132, 4155550132   not after "order", "ticket", "account" and the like
    address       12 Jungle Road Leominster MA 01453, Hauptstraße 12
    name          after an introduction: my name is …, Mr …, … here, kind regards …

    {"phone": "030901820", "name": "Anna Bell"}   →   phone 030901820, name Anna Bell
    {"name": "Desk lamp", "price": 30}            →   no PII: a record with a price is a thing

Not covered: names without an introduction, places without a street, foreign numbers without a prefix, towns, postcodes,
birthdays, and keys in other languages than English. Precision and recall are in docs/retraining.md.

The texts come from strangers and may have any length, so the time may grow only in proportion to the length. Therefore
no pattern scans a run of characters once for each of its positions. Repetitions are bounded, and words of more than 40
letters are not names.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

PIIKind = Literal["email", "iban", "card", "national id", "ip", "phone", "address", "name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PIISpan:
    """Span of personal data, `text[start:stop]`."""

    kind: PIIKind
    start: int
    stop: int


_DOMAIN = re.compile(r"@[\w-]{1,63}(?:\.[\w-]{1,63}){1,9}(?![\w-])")
_LONGEST_LOCAL = 64  # characters before the @ of an e-mail address, and 63 between two dots of its domain (RFC 5321)
_IBAN = re.compile(r"(?<!\w)[A-Za-z]{2}\d{2}(?: ?[A-Za-z0-9]{4}){2,7}(?: ?[A-Za-z0-9]{1,3})?(?!\w)")
_CARD = re.compile(r"(?<![\w.])\d(?:[ -]?\d){12,18}(?!\w)")
_NATIONAL_ID = re.compile(r"(?<![\w-])\d{3}-\d{2}-\d{4}(?![\w-])")
_IP = re.compile(
    r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d)"  # 192.0.2.17:8080 has a port
    r"|[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:]|\.\d))"
)
_PHONE = re.compile(
    r"(?<![\w+])\+\d(?:[ ().-]{0,2}\d){6,14}(?!\w)"  # +49 30 901820
    r"|(?<![\w-])(?:1[ .-]?)?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}(?![\w-])"  # (415) 555-0132
    r"|(?<![\w#-])(?:1?[2-9]\d{2}[2-9]\d{6}|[6-9]\d{9})(?![\w-])"  # 4155550132; ten digits of an Indian mobile
)
_CALLED = re.compile(
    r"\b(?:phone|telephone|mobile|cell|call me (?:at|on|back at)|reach me (?:at|on)|contact)\b"
    r"(?:[ ]?(?:number|no|is|#|at|:|\.)){0,8}[ ]{0,8}(?P<it>\d(?:[ -]?\d){6,14})(?!\w)",
    re.IGNORECASE,
)
_NUMBERED = re.compile(
    r"(?:order|ticket|invoice|account|a/c|acct|reference|ref|tracking|serial|case|booking|reservation|flight|item|product"
    r"|shipment|confirmation|id)\b[\s\w]{0,12}?[\s#:.-]*$",
    re.IGNORECASE,
)
_BEFORE = 30  # characters before a number in which a word such as "order" rules out a telephone

_NO_NAME = (
    r"(?!(?:the|my|a|an|on|in|to|and|or|of|i|is|am|by|it|at|for|from|with|than|this|that|all|its|your|no|not|be)\b)"
)
_STREET = (
    r"(?:street|st|avenue|ave|road|rd|lane|ln|drive|dr|boulevard|blvd|court|ct|parkway|pkwy|highway|hwy|nagar|colony)"
)
_ADDRESS = re.compile(
    rf"(?<![\w#.-])\d{{1,6}}[a-z]?,? (?:{_NO_NAME}[\w.']{{1,40}} ){{1,3}}{_STREET}\b\.?"
    r"(?:,? (?:apt|unit|suite|#)\.? ?\w{1,5})?"
    r"(?:,?(?: [a-z]{1,40}){1,2},? [a-z]{2},? \d{4,5}(?:-\d{4})?(?!\w))?"
    r"|\b[A-ZÄÖÜ][a-zäöüß]{1,40}(?:straße|strasse|str\.|gasse|allee) \d{1,4}[a-z]?\b",
    re.IGNORECASE,
)
_WORD = r"[A-ZÀ-Þ][a-zß-ÿ'’-]{1,40}"
_FULL = rf"{_WORD}(?: {_WORD}){{1,2}}"
_NOT_CALLED = (
    r"(?!(?:and|or|but|is|was|not|the|a|an|on|in|for|my|mine|at|by|i|we|you|it|its|to|of|from|with|please|thanks|thank|sir|"
    r"madam|here|wrong|correct|spelled|misspelled|spelt|required|also|same|associated|linked|registered|listed|different|"
    r"changed|phone|address|number|email|account|card|order|delivery|as|so|that|this|there)\b)"
)
_NAMES = (
    re.compile(
        rf"(?:\bmy (?:full |first |last |sur)?name(?:'s| is)|^name is|\bthe name is|\bi am called|\bi'm called)"
        rf"[ :]{{1,8}}(?P<it>{_NOT_CALLED}[^\W\d_][\w'’-]{{1,40}}(?: {_NOT_CALLED}[^\W\d_][\w'’-]{{1,40}}){{0,2}})",
        re.IGNORECASE,
    ),
    re.compile(rf"\b(?:This is|this is|It is|it is|It's|it's|I am|I'm|i am|i'm) (?P<it>{_FULL})\b"),
    re.compile(rf"(?P<it>{_WORD}(?: {_WORD})?) (?:here\b|speaking\b|on the line\b)"),
    re.compile(rf"\b(?:[Rr]egards|[Ss]incerely|[Yy]ours truly)[,.]?\s{{1,8}}(?P<it>{_FULL})\b"),
    re.compile(rf"\b(?:Mr|Mrs|Ms|Miss|Dr|Prof)\.? (?P<it>{_WORD}(?: {_WORD})?)\b"),
)
_GREETINGS = re.compile(
    r"(?:Hi|Hey|Hello|Good|Morning|Day|Evening|Is|Right|Still|Not|Out|Over|Nobody|Someone|Anyone)\b"
)

_KEYS: dict[str, PIIKind] = {
    **dict.fromkeys(("name", "first_name", "last_name", "full_name", "customer_name", "surname"), "name"),
    **dict.fromkeys(("given_name", "family_name", "contact_name", "firstname", "lastname", "fullname"), "name"),
    **dict.fromkeys(("phone", "phone_number", "telephone", "mobile", "mobile_number", "cell", "fax"), "phone"),
    **dict.fromkeys(("email", "email_address", "e_mail", "mail"), "email"),
    **dict.fromkeys(("street", "street_address", "address", "address1", "address2", "address_line"), "address"),
    **dict.fromkeys(("ssn", "social_security_number", "national_id", "passport", "passport_number"), "national id"),
    **dict.fromkeys(("card_number", "credit_card", "credit_card_number"), "card"),
    "iban": "iban",
}
_THINGS = frozenset(
    (
        *("price", "sku", "quantity", "stock", "product_id", "item_id", "variants", "options", "category"),
        *("parameters", "arguments"),
    )
)
"""Sibling keys of the `name` of a thing, a tool or a call."""
_SHORTEST = 5
"""Minimum number of letters and digits of a number, because shorter ones would match everywhere."""


def find_pii(text: str) -> list[PIISpan]:
    """Find personal data in a text, in order without overlaps. If spans overlap, the first kind in the table wins."""
    covered = bytearray(len(text))  # 1 for each character of a span, so that a check costs only a candidate's length
    spans: list[PIISpan] = []
    for kind, start, stop in _candidates(text):
        if not any(covered[start:stop]):
            covered[start:stop] = b"\1" * (stop - start)
            spans.append(PIISpan(kind=kind, start=start, stop=stop))
    return sorted(spans, key=lambda span: span.start)


def mask_pii(text: str) -> str:
    """Replace each span of personal data with its kind.

    "Write to anna@example.org" → "Write to [email]"
    """
    parts, end = [], 0
    for span in find_pii(text):
        parts += [text[end : span.start], f"[{span.kind}]"]
        end = span.stop
    return "".join((*parts, text[end:]))


def pii_fields(record: Any) -> Iterator[tuple[PIIKind, str]]:
    """Yield each value under a personal key, with its kind."""
    if isinstance(record, dict):
        for key, value in record.items():
            kind = _KEYS.get(str(key).lower())
            if kind is not None and not (str(key).lower() == "name" and _THINGS & record.keys()):
                text = str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
                if _is_value(kind, text):
                    yield kind, text
            yield from pii_fields(value)
    elif isinstance(record, (list, tuple)):
        for value in record:
            yield from pii_fields(value)


def _is_value(kind: PIIKind, text: str) -> bool:
    """Check that a text can be a value of its kind: "none" is not a telephone, "-" not an address."""
    if kind == "email":
        return "@" in text
    if kind in ("name", "address"):
        return sum(letter.isalpha() for letter in text) > 1
    return any(letter.isdigit() for letter in text) and sum(letter.isalnum() for letter in text) >= _SHORTEST


def _candidates(text: str) -> Iterator[tuple[PIIKind, int, int]]:
    plain: tuple[tuple[PIIKind, re.Pattern[str], Callable[[str], bool]], ...] = (
        ("iban", _IBAN, _is_iban),
        ("card", _CARD, _is_card),
        ("national id", _NATIONAL_ID, lambda _: True),
        ("ip", _IP, _is_ip),
    )
    for start, stop in _emails(text):
        yield "email", start, stop
    for kind, pattern, is_valid in plain:
        for match in pattern.finditer(text):
            if is_valid(match[0]):
                yield kind, *match.span()
    for match in _CALLED.finditer(text):
        yield "phone", *match.span("it")
    for match in _PHONE.finditer(text):
        if not _NUMBERED.search(text[max(0, match.start() - _BEFORE) : match.start()]):
            yield "phone", *match.span()
    for match in _ADDRESS.finditer(text):
        yield "address", *match.span()
    for pattern in _NAMES:
        for match in pattern.finditer(text):
            if not _GREETINGS.match(match["it"]):
                yield "name", *match.span("it")


def _emails(text: str) -> Iterator[tuple[int, int]]:
    """Spans of e-mail addresses. The domain is searched first, and the local part is read backwards from its @.

    A pattern that begins with the local part would scan a run of letters again from each of its letters. If a run is
    longer than a local part may be, it is not one.
    """
    end = 0
    for match in _DOMAIN.finditer(text):
        start = match.start()
        while start > max(end, match.start() - _LONGEST_LOCAL - 1) and (
            text[start - 1].isalnum() or text[start - 1] in "_.+-"
        ):
            start -= 1
        if 0 < match.start() - start <= _LONGEST_LOCAL:
            yield start, match.end()
            end = match.end()


def _is_iban(text: str) -> bool:
    """Check digits of ISO 13616: first four characters moved to the end, letters as 10 to 35, remainder 1 mod 97."""
    compact = text.replace(" ", "").upper()
    if not 15 <= len(compact) <= 34:
        return False
    return int("".join(str(int(letter, 36)) for letter in compact[4:] + compact[:4])) % 97 == 1


def _is_card(text: str) -> bool:
    """Luhn check: every second digit from the right is doubled, and the digit sum must be a multiple of ten.

    A number that repeats a single digit is not a card.

    4111111111111111 → 8+1+2+1+2+1+2+1+2+1+2+1+2+1+2+1 = 30
    """
    digits = [int(letter) for letter in text if letter.isdigit()]
    doubled = [digit if k % 2 == 0 else sum(divmod(2 * digit, 10)) for k, digit in enumerate(reversed(digits))]
    return len(set(digits)) > 1 and sum(doubled) % 10 == 0


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return len(text) > 3 and any(letter.isdigit() for letter in text)  # "::" names no host, and code has "a::b"
