"""Text features of a reply, each in [0, 1]: the terms of the quality rewards."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache

from grpo.rewards.text.language import clamp, content, normalize, sentences, split_list, words
from grpo.rewards.text.reply import AgentReply

_RELEVANT_SHARE = 0.4  # of the IDF weight of the request; no reply repeats all of it
_ENOUGH_NEW = 8  # content words that are not in the request
_UNRELATED_SHARE = 0.25  # of `information`, for a reply that repeats no word of the request, because it may paraphrase
_ENOUGH_STEPS = 3
_CACHED = 2048  # replies
_MOST_MARKS = 2  # exclamation marks, and question marks, without a penalty


def _any(alternatives: str) -> re.Pattern[str]:
    """Pattern of whole words and phrases, from alternatives separated by commas."""
    return re.compile(r"\b(?:" + "|".join(split_list(alternatives)) + r")\b")


def _matches(pattern: re.Pattern[str], text: str) -> bool:
    return pattern.search(normalize(text)) is not None


_ACTION_VERBS = split_list(
    """add, apply, ask, attach, book, bring, build, call, change, charge, check, choose, clean, click, close, compare,
    connect, copy, count, delete, disconnect, divide, download, draw, enter, exchange, fill, find, forget, hold,
    install, keep, leave, list, log, make, move, multiply, open, order, paste, pick, plug, practise, practice,
    press, print, pull, push, put, read, reboot, refund, reinstall, remove, rename, replace, reply, reset,
    restart, return, run, save, scan, schedule, select, send, set, ship, show, sign, start, subtract, switch,
    take, tap, test, tighten, transfer, turn, type, uninstall, unplug, update, use, visit, wait, write"""
)
_TIME = _any(
    r"""\d{1,2}(?::\d\d)?\s?(?:am|pm|o'clock), \d{1,2}:\d\d, today, tonight, tomorrow, yesterday,
    (?:mon|tues|wednes|thurs|fri|satur|sun)days?, january, february, march, april, june, july, august, september,
    october, november, december, may \d+, noon, midnight, (?:this|tomorrow|in the|by) (?:morning|afternoon|evening),
    (?:\d+|an?|one|two|three|four|five|six|seven|eight|ten|twelve|few)(?:\s\w+)?\s(?:second|minute|hour|day|week|month|year)s?,
    daily, weekly, monthly, immediately, right away"""
)
_MONEY = re.compile(
    r"[$€£]\s?\d|\b\d[\d.,]{0,20}\s?(?:dollars?|euros?|pounds?|cents?|usd|eur)\b|\bfree\b|\bno charge\b",
)
_COUNT = re.compile(
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|dozen|twice|none|zero)\b",
)
_PLACE = re.compile(
    r"\b(?:page|site|website|app|settings|menu|tab|street|store|account|warehouse|cent(?:er|re)|depot|desk|link|office"
    r"|branch|box|section|email|left|right|top|bottom|side|door|floor|map)\b|https?://|www\.|\w\.com\b",
)
_REASON = _any(
    r"""because, due to, since, as the, reason, caused?, causes, so that, owing, means that, otherwise, means, comes
    from, happens when, that is why, that's why"""
)
_STANCE = _any(
    r"""yes, no, sure, certainly, of course, absolutely, unfortunately, correct, right, not yet,
    (?:i|we|you|it|they|he|she|that|this)(?:'ve|'ll|'re|'s| can| could| will| have| has| do| does| is| are| was),
    (?:can|do|does|is|are|will|has)(?:n't| not), cannot, \w+ (?:is|are|works?|has|have|does|do|can)"""
)
_ACTION_VERB_SET = frozenset(_ACTION_VERBS)
_STEP = _any(", ".join(_ACTION_VERBS))
_QUESTIONS: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...] = (
    (_any(r"how long, how soon, when, what time, what day, which day, how late"), _TIME),
    (_any(r"how much, what price, the price, cost, costs, charge for, fee"), _MONEY),
    (_any("how many"), _COUNT),
    (_any(r"""how (?:do|can|should|would|could) (?:i|we|you), how to, what (?:do|should|can) i do"""), _STEP),
    (_any("where"), _PLACE),
    (_any(r"why, how come"), _REASON),
    (
        re.compile(
            r"^(?:(?:so|and|but|or|also|then),? )?"
            r"(?:is|are|do|does|did|can|could|will|would|has|have|should|was|were|am)\b",
        ),
        _STANCE,
    ),
)
_DEFERRAL = _any(
    r"""look(?:ing)? into, get back to you, (?:contact|call|ask|reach out to) (?:our |the |a )?(?:\w+
    )?(?:support|service|team|department), please wait, be patient, (?:check|visit|see) (?:our|the)
    (?:website|site|faq|page|manual), try again later, not sure, no idea, don't know, i guess, hopefully, at some
    point, it depends, someone will, as soon as possible, many (?:reasons|options|things|ways), various, look it up,
    somehow"""
)
_COMMITMENT = re.compile(
    r"\b(?:i|we)(?:'ve| have|'ll| will|'m| am|'re| are) (?:just |now |already |also |going to )?"
    r"(?!looking|needed|excited|pleased|delighted|interested|tried|checking|trying)"
    r"(?:\w{2,}(?:ed|ing)|sent|put|set|made|paid|sold|found|written|given|told|taken|"
    + "|".join(_ACTION_VERBS)
    + r")\b"
    r"|\b(?:would|shall|do|should) (?:you (?:like|want|prefer)|i|we)\b"
    r"|\byou(?:'ll| will) (?:get|receive|have|see|find)\b"
    r"|\b(?:it|that|which) (?:will|should) (?:arrive|be|reach|take)\b|\bplease (?:" + "|".join(_ACTION_VERBS) + r")\b"
    r"|(?:^|[.!?,:;\n]\s{0,4}|\bthen |\band )(?:\d+[.)]\s*)?(?:" + "|".join(_ACTION_VERBS) + r")\b",
)
_UPSET = _any(
    r"""angry, annoy\w*, frustrat\w*, upset, disappoint\w*, ridiculous, terrible, unacceptable, worst, broken, broke,
    late, wrong, damaged?, missing, still, never, again, twice, lost, cracked, fed up, no(?:body| one), horrible,
    waiting, leak\w*, stuck, smash\w*, overcharged"""
)
_EMPATHY = _any(
    r"""sorry, apologi[sz]e, apolog(?:y|ies), understand, frustrating, inconvenience, that must, i see why, you're
    right, you are right, annoying, disappointing, thank you for (?:telling|letting|your patience)"""
)
_RUDE = _any(
    r"""stupid, idiot\w*, dumb, shut up, whatever, not my (?:problem|job|fault), your (?:own )?(?:fault|problem), lol,
    wtf, dunno, calm down, deal with it, too bad, obviously, lazy, stop (?:bothering|complaining|whining), read the
    manual, figure it out, tough luck, who cares, bro, wanna, gonna, everybody knows, go away, what do you expect"""
)
_PRESSURE = _any(
    r"""act now, last chance, hurry, limited time, before it's too late, guaranteed?, you must buy, don't miss, everyone
    (?:is|else), only today, buy (?:it )?now, regret, once in a lifetime, no[- ]brainer, best in the world"""
)
_OFFER = _any(
    r"""includes?, comes with, warranty, supports?, weighs?, lasts?, fits?, holds?, covers?, per
    (?:month|user|year|night), than, compared, cheaper, lighter, larger, smaller, faster, quieter, instead, trial,
    saves?, suits?, enough for, designed for, made (?:of|for|from), (?:in|out of) stock, recommend, a better
    (?:fit|match)"""
)
_OFFERED = re.compile(
    r"[$€£]\s?\d|\b\d+(?:\.\d+)?\s?(?:%|percent|gb|tb|kg|g|cm|mm|inch(?:es)?|lit(?:er|re)s?|hours?|users?|people|years?"
    r"|days?|watts?)",
)
_EXPLAINS = _any(
    r"""because, so, means?, since, think of, imagine, for example, for instance, notice, remember, if, when, like, same
    as, that is why, in other words, equals?, gives, becomes?, is called, therefore, first, then, why"""
)
_ENCOURAGES = _any(
    r"""good (?:start|question|thinking|try|work|idea), great (?:start|question|try|work), nice (?:start|try|work), well
    done, almost, on the right track, you (?:got|found), exactly, try, close, let's, common (?:mistake|mix-up),
    right to"""
)
_OFFERS_MORE = _any(
    r"""let me know, would you like, shall i, feel free, tell me, can i, do you want, should i, which of, happy to, what
    do you think, your turn, can you"""
)
_NUMBERED = re.compile(r"(?:^|\s)(\d{1,2})[.)]\s")
_IDENTIFIER = re.compile(r"(?<![\w.,$€£])#?([a-z]{0,4}-?\d{4,}[a-z0-9-]*)(?![\w]|[.,]\d)")


def relevance(reply: AgentReply) -> float:
    """Relevance to the request: the share of its content words that the reply repeats, by IDF over the user's turns.

    A word that is only in this turn weighs more than a word of every turn. 1 if the request has no content words.
    """
    asked = content(reply.request)
    if not asked:
        return 1.0
    turns = [content(turn) for turn in reply.user_turns]
    idf = {word: math.log(1 + len(turns) / sum(word in turn for turn in turns)) for word in asked}
    repeated = sum(idf[word] for word in asked & content(reply.text))
    return clamp(repeated / sum(idf.values()) / _RELEVANT_SHARE)


def answer(reply: AgentReply) -> float:
    """The kind of answer that the user asked for: a time for "when", steps for "how do I", a reason for "why".

    If the user asked no question, it is an action. A deferral ("someone will look into it") counts a third.
    """
    questions = [part for part in sentences(reply.request) if "?" in part]
    scores = [_answered(question, reply) for question in questions] or [action(reply)]
    return sum(scores) / len(scores) * _undeferred(reply)


def _answered(question: str, reply: AgentReply) -> float:
    kinds = [given for asks, given in _QUESTIONS if _matches(asks, question)]
    if not kinds:
        return information(reply)
    return sum(_matches(given, reply.text) for given in kinds) / len(kinds)


def _undeferred(reply: AgentReply) -> float:
    return 1 / 3 if _matches(_DEFERRAL, reply.text) else 1.0


def information(reply: AgentReply) -> float:
    """New information on the matter: 1 at eight content words that neither user nor agent used before."""
    before = content(reply.user_text).union(*map(content, reply.previous))
    return clamp(len(content(reply.text) - before) / _ENOUGH_NEW) * max(_UNRELATED_SHARE, relevance(reply))


def action(reply: AgentReply) -> float:
    """An action or an instruction: "I have sent a new one", "please send the photo", "shall I …?"."""
    return float(_matches(_COMMITMENT, reply.text)) * _undeferred(reply)


def steps(reply: AgentReply) -> float:
    """Instructions one after the other: 1 at three verbs of action. Steps out of order count half."""
    text = normalize(reply.text)
    verbs = _ACTION_VERB_SET & {*words(reply.text)} - {*words(reply.request)}
    numbered = [int(number) for number in _NUMBERED.findall(text)]
    places = [text.find(word) for word in ("first", "then", "finally") if word in text]
    in_order = numbered == sorted(set(numbered)) and places == sorted(places)
    return clamp(len(verbs) / _ENOUGH_STEPS) * (1.0 if in_order else 0.5)


def empathy(reply: AgentReply) -> float:
    """Acknowledges the trouble of an upset user. 1 if the user is not upset."""
    upset = _matches(_UPSET, reply.request)
    return float(not upset or _matches(_EMPATHY, reply.text))


def professional(reply: AgentReply) -> float:
    """Neither rude nor slangy nor shouting."""
    written = reply.text.split()
    shouted = sum(len(word) > 1 and word.isupper() for word in written)
    if shouted > max(3, len(written) / 2) or _matches(_RUDE, reply.text):
        return 0.2
    return moderate_punctuation(reply)


def moderate_punctuation(reply: AgentReply) -> float:
    """Up to two exclamation marks and two question marks are free. Each further mark costs a quarter."""
    excess = sum(max(0, reply.text.count(mark) - _MOST_MARKS) for mark in "!?")
    return clamp(1 - excess / 4)


def no_pressure(reply: AgentReply) -> float:
    """No pressure to buy."""
    return 1.0 if not _matches(_PRESSURE, reply.text) else 0.3


def product_details(reply: AgentReply) -> float:
    """Properties, functions or prices of a product: 1 at three different details."""
    text = normalize(reply.text)
    return clamp(len({*_OFFER.findall(text), *_OFFERED.findall(text)}) / 3)


def explanation(reply: AgentReply) -> float:
    """Connectives and worked equations: 1 at three different ones."""
    return clamp((len({*_EXPLAINS.findall(normalize(reply.text))}) + reply.text.count("=")) / 3)


def encouragement(reply: AgentReply) -> float:
    """Praises a right step, or asks the learner to try."""
    return float(_matches(_ENCOURAGES, reply.text) or 0 < reply.text.count("?") <= _MOST_MARKS)


def invitation(reply: AgentReply) -> float:
    """Keeps the conversation open: a question, or an offer to go on."""
    return float(0 < reply.text.count("?") <= _MOST_MARKS or _matches(_OFFERS_MORE, reply.text))


def second_person(reply: AgentReply) -> float:
    """Addresses the user."""
    return float(bool({"you", "your", "you're", "you'll", "you've", "yours"} & {*words(reply.text)}))


def novelty(reply: AgentReply) -> float:
    """Differs from earlier replies: 1 up to half the content words in common, 0 for a repeated reply."""
    own = content(reply.text)
    overlaps = [len(own & content(other)) / max(1, len(own | content(other))) for other in reply.previous]
    return clamp(2 * (1 - max(overlaps, default=0.0)))


def vocabulary(reply: AgentReply) -> float:
    """Size of the vocabulary: 1 at 25 different content words."""
    return clamp(len(content(reply.text)) / 25)


def identifiers(reply: AgentReply) -> float:
    """Correct order numbers and the like: the share of the numbers in the reply that user or context gave.

    1 if neither user nor context gave one. An amount of money does not count.
    """
    given = {*_IDENTIFIER.findall(normalize(f"{reply.user_text}\n{reply.context}"))}
    used = {*_IDENTIFIER.findall(normalize(reply.text))}
    return len(used & given) / len(used) if given and used else 1.0


FEATURES: dict[str, Callable[[AgentReply], float]] = {
    feature.__name__: lru_cache(_CACHED)(feature)
    for feature in (
        relevance, answer, information, action, steps, empathy, professional, no_pressure, product_details,
        explanation, encouragement, invitation, second_person, novelty, vocabulary, identifiers,
    )
}  # fmt: skip
"""Features by name, for the weights of rewards and for breakdowns. Cached, because several rewards read one reply."""
