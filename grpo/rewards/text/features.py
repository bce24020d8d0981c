"""What text rewards are made of: each part asks one thing of a reply, and answers in [0, 1]."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache

from grpo.rewards.text.language import clamp, content, normalize, sentences, split_list, words
from grpo.rewards.text.reply import AgentReply

_ENOUGH_TAKEN_UP = 0.4  # of what the customer's words weigh; nobody says all of them again
_ENOUGH_NEW = 8  # content words that the customer did not say
_OWN_WORDS = (
    0.25  # of substance stays to a reply that repeats no word of the question: it may answer in words of its own
)
_ENOUGH_STEPS = 3
_REMEMBERED = 2048  # replies
_MOST_MARKS = 2  # exclamation marks, or question marks, that a calm reply has


def _any(alternatives: str) -> re.Pattern[str]:
    """Whole words and phrases, as patterns with commas between."""
    return re.compile(r"\b(?:" + "|".join(split_list(alternatives)) + r")\b")


def _says(pattern: re.Pattern[str], text: str) -> bool:
    return pattern.search(normalize(text)) is not None


_DOINGS = split_list(
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
    r"[$€£]\s?\d|\b\d[\d.,]*\s?(?:dollars?|euros?|pounds?|cents?|usd|eur)\b|\bfree\b|\bno charge\b",
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
_DO = frozenset(_DOINGS)
_STEP = _any(", ".join(_DOINGS))
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
_STALL = _any(
    r"""look(?:ing)? into, get back to you, (?:contact|call|ask|reach out to) (?:our |the |a )?(?:\w+
    )?(?:support|service|team|department), please wait, be patient, (?:check|visit|see) (?:our|the)
    (?:website|site|faq|page|manual), try again later, not sure, no idea, don't know, i guess, hopefully, at some
    point, it depends, someone will, as soon as possible, many (?:reasons|options|things|ways), various, look it up,
    somehow"""
)
_COMMITMENT = re.compile(
    r"\b(?:i|we)(?:'ve| have|'ll| will|'m| am|'re| are) (?:just |now |already |also |going to )?"
    r"(?!looking|needed|excited|pleased|delighted|interested|tried|checking|trying)"
    r"(?:\w{2,}(?:ed|ing)|sent|put|set|made|paid|sold|found|written|given|told|taken|" + "|".join(_DOINGS) + r")\b"
    r"|\b(?:would|shall|do|should) (?:you (?:like|want|prefer)|i|we)\b"
    r"|\byou(?:'ll| will) (?:get|receive|have|see|find)\b"
    r"|\b(?:it|that|which) (?:will|should) (?:arrive|be|reach|take)\b|\bplease (?:" + "|".join(_DOINGS) + r")\b"
    r"|(?:^|[.!?,:;\n]\s*|\bthen |\band )(?:\d+[.)]\s*)?(?:" + "|".join(_DOINGS) + r")\b",
)
_UPSET = _any(
    r"""angry, annoy\w*, frustrat\w*, upset, disappoint\w*, ridiculous, terrible, unacceptable, worst, broken, broke,
    late, wrong, damaged?, missing, still, never, again, twice, lost, cracked, fed up, nobody, no one, horrible,
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


def need(exchange: AgentReply) -> float:
    """Takes up what the customer is about: the share of the content words just said, by IDF over the customer's turns.

    A word of this turn alone weighs more than one of every turn. 1 where the customer said nothing of content.
    """
    asked = content(exchange.asked)
    if not asked:
        return 1.0
    turns = [content(turn) for turn in exchange.user_turns]
    idf = {word: math.log(1 + len(turns) / sum(word in turn for turn in turns)) for word in asked}
    taken_up = sum(idf[word] for word in asked & content(exchange.reply))
    return clamp(taken_up / sum(idf.values()) / _ENOUGH_TAKEN_UP)


def answer(exchange: AgentReply) -> float:
    """Gives what was asked for: a time for "when", steps for "how do I", a reason for "why"; a deed for a complaint.

    Putting off ("somebody will look into it") counts a third.
    """
    questions = [part for part in sentences(exchange.asked) if "?" in part]
    scores = [_answered(question, exchange) for question in questions] or [action(exchange)]
    return sum(scores) / len(scores) * (1 / 3 if _says(_STALL, exchange.reply) else 1.0)


def _answered(question: str, exchange: AgentReply) -> float:
    kinds = [given for asks, given in _QUESTIONS if _says(asks, question)]
    if not kinds:
        return substance(exchange)
    return sum(_says(given, exchange.reply) for given in kinds) / len(kinds)


def substance(exchange: AgentReply) -> float:
    """Says something new on the matter: full at eight content words that neither customer nor agent said before."""
    before = content(exchange.said).union(*map(content, exchange.earlier))
    return clamp(len(content(exchange.reply) - before) / _ENOUGH_NEW) * max(_OWN_WORDS, need(exchange))


def action(exchange: AgentReply) -> float:
    """Does something, or says what to do: "I have sent a new one", "please send the photo", "shall I …?"."""
    return float(_says(_COMMITMENT, exchange.reply)) * (1 / 3 if _says(_STALL, exchange.reply) else 1.0)


def steps(exchange: AgentReply) -> float:
    """Tells what to do, one thing after the other: full at three doings; steps out of order count half."""
    reply = normalize(exchange.reply)
    doings = _DO & {*words(exchange.reply)} - {*words(exchange.asked)}
    numbered = [int(number) for number in _NUMBERED.findall(reply)]
    places = [reply.find(word) for word in ("first", "then", "finally") if word in reply]
    in_order = numbered == sorted(set(numbered)) and places == sorted(places)
    return clamp(len(doings) / _ENOUGH_STEPS) * (1.0 if in_order else 0.5)


def empathy(exchange: AgentReply) -> float:
    """Acknowledges trouble where the customer has some; else nothing is asked."""
    troubled = _says(_UPSET, exchange.asked)
    return float(not troubled or _says(_EMPATHY, exchange.reply))


def professional(exchange: AgentReply) -> float:
    """Neither rude nor slangy nor shouting."""
    said = exchange.reply.split()
    shouted = sum(len(word) > 1 and word.isupper() for word in said)
    return 0.2 if shouted > max(3, len(said) / 2) or _says(_RUDE, exchange.reply) else calm(exchange)


def calm(exchange: AgentReply) -> float:
    """At most two exclamation and two question marks; each one more takes a quarter."""
    excess = sum(max(0, exchange.reply.count(mark) - _MOST_MARKS) for mark in "!?")
    return clamp(1 - excess / 4)


def unhurried(exchange: AgentReply) -> float:
    """Puts no pressure on who buys."""
    return 1.0 if not _says(_PRESSURE, exchange.reply) else 0.3


def offer(exchange: AgentReply) -> float:
    """Says what the product is, does or costs: full at three different details."""
    reply = normalize(exchange.reply)
    return clamp(len({*_OFFER.findall(reply), *_OFFERED.findall(reply)}) / 3)


def explains(exchange: AgentReply) -> float:
    """Shows how things hang together: full at three different connectives or worked equations."""
    return clamp((len({*_EXPLAINS.findall(normalize(exchange.reply))}) + exchange.reply.count("=")) / 3)


def encourages(exchange: AgentReply) -> float:
    """Takes the learner along: names what is right, or invites to try."""
    return float(_says(_ENCOURAGES, exchange.reply) or 0 < exchange.reply.count("?") <= _MOST_MARKS)


def invites(exchange: AgentReply) -> float:
    """Keeps the conversation open: a question of its own, or an offer to go on."""
    return float(0 < exchange.reply.count("?") <= _MOST_MARKS or _says(_OFFERS_MORE, exchange.reply))


def addresses(exchange: AgentReply) -> float:
    """Speaks to the customer."""
    return float(bool({"you", "your", "you're", "you'll", "you've", "yours"} & {*words(exchange.reply)}))


def fresh(exchange: AgentReply) -> float:
    """Is not what the agent said before: 1 up to half the content words in common, 0 for the same again."""
    own = content(exchange.reply)
    alike = [len(own & content(other)) / max(1, len(own | content(other))) for other in exchange.earlier]
    return clamp(2 * (1 - max(alike, default=0.0)))


def imagery(exchange: AgentReply) -> float:
    """Paints with many different words: full at 25 content words."""
    return clamp(len(content(exchange.reply)) / 25)


def entities(exchange: AgentReply) -> float:
    """Repeats order numbers and the like correctly: the share of those in the reply that were given to the agent.

    Only where the customer or the context gave one; an amount of money is none.
    """
    given = {*_IDENTIFIER.findall(normalize(f"{exchange.said}\n{exchange.known}"))}
    said = {*_IDENTIFIER.findall(normalize(exchange.reply))}
    return len(said & given) / len(said) if given and said else 1.0


PARTS: dict[str, Callable[[AgentReply], float]] = {
    part.__name__: lru_cache(_REMEMBERED)(part)
    for part in (
        need, answer, substance, action, steps, empathy, professional, calm, unhurried, offer, explains, encourages,
        invites, addresses, fresh, imagery, entities,
    )
}  # fmt: skip
"""By name, as rewards weigh them and breakdowns show them; several rewards ask the same of a reply."""
