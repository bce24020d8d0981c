"""Personal data in records: what stands under a key that says so, whatever it looks like.

    {"phone": "030901820", "name": "Anna Bell"}   →   phone 030901820, name Anna Bell
    {"name": "Desk lamp", "price": 30}            →   nothing: what has a price is no person

Not covered: towns and postcodes, birthdays, and keys in other languages than English.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grpo.retraining.pii import PIIKind

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
    ("price", "sku", "quantity", "stock", "product_id", "item_id", "variants", "options", "category", "parameters")
)
"""Beside one of these a `name` is that of a thing."""
_SHORTEST = 5
"""Letters and digits that a number must have: fewer would be found everywhere."""


def pii_fields(record: Any) -> Iterator[tuple[PIIKind, str]]:
    """Each value under a personal key, with its kind."""
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
    """Whether it can be what its key says: "none" is no telephone, "-" no address."""
    if kind == "email":
        return "@" in text
    if kind in ("name", "address"):
        return sum(letter.isalpha() for letter in text) > 1
    return any(letter.isdigit() for letter in text) and sum(letter.isalnum() for letter in text) >= _SHORTEST
