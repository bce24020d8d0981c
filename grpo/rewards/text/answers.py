r"""Numbers in a text, and the final answer of a worked solution.

"#### 1,200"   "\boxed{1200}"   "The answer is $1,200.00."   "… so she earned 1 200 dollars"   → 1200
"1 1/2" → 3/2     "½" → 1/2     "-5" → -5     "The answer is not 42." → none
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

_GAP = "[, \u00a0\u2009\u202f]"
_PARTS = "[¼-¾⅐-⅞]"
_MOST_DIGITS = 300
"""Digits beyond which a number is not read, because Python converts neither such a text nor such a fraction."""
_NUMBER = re.compile(
    rf"(?<![\w.])(?P<sign>[-−]\s?)?[$€£]?\s?(?P<inner>[-−])?"
    rf"(?:(?P<whole>\d{{1,3}}(?:{_GAP}\d{{3}})+(?!\d)|\d+)(?P<decimals>\.\d+)?|(?P<bare>\.\d+)|(?P<part>{_PARTS}))"
    rf"(?:\s?(?P<and_part>{_PARTS})|\s?/\s?(?P<below>[1-9]\d*)|\s(?P<top>\d+)/(?P<bottom>[1-9]\d*))?"
)
_CALCULATOR = re.compile(r"<<[^<>]*>>")
_MARKED = re.compile(r"####\s*(.+)")
_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_STATED = re.compile(r"\banswers?\b(?:\s+\w+){0,4}?\s*(?:\bis\b|\bare\b|\bwas\b|=|:)(?P<rest>[^\n]*)", re.IGNORECASE)
_DENIED_BEFORE = re.compile(
    r"(?:\bnot|n['’]t|\bnever|\bcannot)(?:\s+(?:be|equal|equals|to|exactly|simply|just))*\s*[*$€£]*\s*$", re.IGNORECASE
)
_DENIED_AFTER = re.compile(
    r"[\s*]*(?:\w+\s+)?(?:is|was|are)(?:\s+not\b|n['’]t\b|\s+(?:wrong|incorrect|false|untrue)\b)", re.IGNORECASE
)


def numbers(text: str) -> list[Fraction]:
    """Numbers that a text asserts, in order. "not 42" asserts none."""
    asserted = []
    for match in _NUMBER.finditer(text):
        before, after = text[max(0, match.start() - 40) : match.start()], text[match.end() : match.end() + 30]
        if _is_read(match) and not _DENIED_BEFORE.search(before) and not _DENIED_AFTER.match(after):
            asserted.append(_value(match))
    return asserted


def final_answer(text: str) -> Fraction | None:
    r"""Final number of a worked solution.

    After `####`, else in the last `\boxed{}`, else in the last sentence with "answer", else after the last = of the
    last line, else the last number. None if no number is found there, or if the text denies it: "the answer is not 42".
    """
    plain = _FRACTION.sub(r"\1/\2", _CALCULATOR.sub("", text))
    for pattern in (_MARKED, _BOXED):
        if marked := pattern.findall(plain):
            values = numbers(marked[-1].replace("$", " "))
            return values[0] if values else None
    if stated := list(_STATED.finditer(plain)):
        rest = stated[-1].group("rest")
        if _NUMBER.search(rest):
            values = numbers(re.split(r"(?<=[.!?])\s", rest.strip(), maxsplit=1)[0])
            return values[-1] if values else None
    last_line = plain.rstrip().rpartition("\n")[2]
    if "=" in last_line and (values := numbers(last_line.rpartition("=")[2])):
        return values[0]
    values = numbers(plain)
    return values[-1] if values else None


def parse_quantity(text: str) -> Fraction | None:
    """Value of a text that is only a number with an optional currency sign or unit, or None for any other text.

    "$1,200.00" → 1200; "#### 72" → 72; "5 km" → 5; "Delivery takes 5 days" → none
    """
    plain = text.replace("#", " ").strip()
    match = _NUMBER.match(plain)
    if not match or not _is_read(match) or not re.fullmatch(r"[\s%°]*[^\W\d]*\.?", plain[match.end() :]):
        return None
    return _value(match)


def _is_read(match: re.Match[str]) -> bool:
    return sum(character.isdecimal() for character in match.group()) <= _MOST_DIGITS


def _value(match: re.Match[str]) -> Fraction:
    part = match["part"]
    if part:
        value = _part(part)
    else:
        whole = re.sub(_GAP, "", match["whole"] or "0")
        value = Fraction(whole + (match["decimals"] or match["bare"] or ""))
    if match["and_part"]:
        value += _part(match["and_part"])
    elif match["below"]:
        value /= int(match["below"])
    elif match["top"]:
        value += Fraction(int(match["top"]), int(match["bottom"]))
    return -value if match["sign"] or match["inner"] else value


def _part(character: str) -> Fraction:
    """Value of a character such as ½."""
    return Fraction(unicodedata.numeric(character)).limit_denominator(10)
