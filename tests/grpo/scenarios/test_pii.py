from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator

import pytest

from grpo.scenarios.pii import find_pii, mask_pii
from tests.places import PUBLISHED

MULTIDOGO = PUBLISHED / "multidogo" / "turn"
LABELS = {"name", "address", "phonenumber", "card_number", "account_number", "ssn", "email"}
"""Slots of MultiDoGO that hold personal data."""


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Write to anna.bell+shop@mail.example.org, please.", "Write to [email], please."),
        ("IBAN DE89 3704 0044 0532 0130 00 is mine", "IBAN [iban] is mine"),
        ("pay GB82WEST12345698765432 now", "pay [iban] now"),
        ("card 4111 1111 1111 1111 exp 12/27", "card [card] exp 12/27"),
        ("amex 378282246310005.", "amex [card]."),
        ("my ssn is 536-90-4399", "my ssn is [national id]"),
        ("from 203.0.113.7 and 2001:db8::17", "from [ip] and [ip]"),
        ("10.1.2.3:443 refused by 203.0.113.9: timeout", "[ip]:443 refused by [ip]: timeout"),
        ("std::sort, a::b and version 1.2.3.4.5", "std::sort, a::b and version 1.2.3.4.5"),
        ("call +49 (30) 901820 or (415) 555-0132", "call [phone] or [phone]"),
        ("reach me at 415.555.0132", "reach me at [phone]"),
        ("9166545266", "[phone]"),
        ("my phone number is 555 0132", "my phone number is [phone]"),
        ("deliver to 12 Jungle Road Leominster MA 01453 today", "deliver to [address] today"),
        ("I live at 1120 N Street, apt 4", "I live at [address]"),
        ("Bitte an Hauptstraße 12 liefern", "Bitte an [address] liefern"),
        ("my name is hamresh gupta and I wait", "my name is [name] and I wait"),
        ("It is Agnes Moser on the line.", "It is [name] on the line."),
        ("Hey, Lukas Thomsen here.", "Hey, [name] here."),
        ("Kind regards, Harald Jost", "Kind regards, [name]"),
        ("I am Mr. Brown.", "I am Mr. [name]."),
    ],
)
def test_personal_data_is_found(text: str, masked: str):
    """Each kind, where people write it."""
    assert mask_pii(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "My order 9514 cost 136 and came after 15 days.",
        "order #W2378156, item 1151293680",
        "my order number is 3348917502",
        "ticket 4155550132 is still open",
        "card 4111 1111 1111 1112 has a wrong digit",
        "IBAN GB82WEST12345698765433 has a wrong digit",
        "0000 0000 0000 0000",
        "at 10:30:15 on 2026-11-21",
        "version 300.2.900.1",
        "2 burgers on the way",
        "I am Very angry and this is Not working",
        "Good Morning here",
        "my name is misspelled on the parcel",
        "3 of the 5 lamps in my street",
        "my company name is fun world",
    ],
)
def test_other_numbers_and_words_stay(text: str):
    """Orders, amounts, times, wrong check digits, words that only look like names."""
    assert mask_pii(text) == text


def test_the_first_of_two_overlapping_kinds_is_taken():
    """A card number contains ten digits in a row, but not a telephone."""
    assert [span.kind for span in find_pii("5454251496587846 and 4111111111111111")] == ["card"]


@pytest.mark.skipif(not MULTIDOGO.is_dir(), reason="MultiDoGO is not on this machine")
def test_precision_and_recall_on_labelled_conversations():
    """Labels by annotators: precision 97 %; telephones are found, names without an introduction mostly not."""
    detected: Counter[str] = Counter()
    right: Counter[str] = Counter()
    phones = caught = 0
    for words, labels in _labelled():
        text = " ".join(words)
        ends = [len(" ".join(words[: k + 1])) for k in range(len(words))]
        spans = find_pii(text)
        for span in spans:
            touched = [label for label, end, word in zip(labels, ends, words, strict=True) if _touch(span, end, word)]
            detected[span.kind] += 1
            right[span.kind] += 2 * sum(label in LABELS for label in touched) >= len(touched)
        for label, end, word in zip(labels, ends, words, strict=True):
            phones += label == "phonenumber"
            caught += label == "phonenumber" and any(_touch(span, end, word) for span in spans)
    assert sum(detected.values()) > 1900
    assert sum(right.values()) / sum(detected.values()) > 0.95
    assert all(right[kind] / detected[kind] > 0.9 for kind in ("phone", "address", "card", "name"))
    assert caught / phones > 0.8


def _touch(span: object, end: int, word: str) -> bool:
    return end - len(word) < span.stop and end > span.start  # type: ignore[attr-defined]


def _labelled() -> Iterator[tuple[list[str], list[str]]]:
    """Words of each turn, and the slot of each word."""
    for domain in ("software", "finance", "fastfood"):
        with (MULTIDOGO / domain / "train.tsv").open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file, delimiter="\t"):
                words, labels = row["utterance"].split(), row["slot-labels"].split()
                if len(words) == len(labels):
                    yield words, labels
