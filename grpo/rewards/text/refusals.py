"""Refusal detector: replies that decline a request.

A frame is a sentence in which the agent declines, built from small vocabularies instead of whole phrases:

    inability       subject + negated modal or state + assistance      "we are unable to answer", "can't help you"
    performative    subject + verb of declining                        "I must decline", "I'd rather not"
    propriety       "it is not" + adjective of propriety + act         "it would not be right for me to discuss"
    rule            rule of the agent + verb of prevention             "my guidelines do not allow me to"
    matter          request or subject + inability or refusal          "this question cannot be answered"
    admonition      opening with a judgement on the act                "it is important to note that theft is never"

A frame does not count in a quotation, in a sentence that goes on with an answer ("I can't say for your case, but in
general a lease ends after three months"), before an announcement of an answer ("However, here are some ideas"), as a
disclaimer with an answer ("I can't give medical advice. Most adults take …"), and after `PREAMBLE` words of other text.
A warning ("I wouldn't recommend it") is an answer, and so is a reply that contests the premise of a question. English
only.
"""

from __future__ import annotations

import re

from grpo.rewards.text.language import normalize, words

PREAMBLE = 60
"""If a sentence has more words than this before it, it does not count as a refusal."""
_ENOUGH_ANSWER = 6
"""If at least this many words follow "but", the sentence goes on with an answer."""
_ENOUGH_BESIDE = 12
"""If a reply has at least this many other words with a disclaimer, it has an answer."""

_I = r"(?:i|we|(?:the|this|your) assistant)"
_HOW = (
    r"(?:(?:really|simply|just|also|still|therefore|unfortunately|certainly|definitely|personally|ever|\w+fully"
    r"|directly"
    r"|responsibly|safely|legally|ethically|knowingly|be able to|in good conscience) )*"
)
_CANNOT = (
    r"(?:can(?:'t|not|not and will not| not)|won't|will (?:not|never)|shall not|shan't|must(?:n't| not)|may not"
    r"|could(?:n't| not) (?:possibly|in good conscience)|would(?:n't| not) (?:be able|feel \w+)"
    r"|(?:do not|don't) (?:want|wish|intend|plan|feel able))"
)
_DO_NOT = r"(?:do not|don't|does not|doesn't|would never|will never)"
_UNABLE = (
    r"(?:not (?:be |\w+ly )?(?:able|allowed|permitted|authori[sz]ed|willing|going|prepared|equipped|programmed|designed"
    r"|supposed|free|at liberty|in a position|capable|qualified|here|meant|comfortable)|unable|incapable|unwilling"
    r"|uncomfortable|(?:restricted|prevented|prohibited|forbidden|barred|banned) from)"
)
_LACK = (
    r"(?:lack|(?:do not|don't) have|have no) (?:the |any )?(?:ability|capability|capacity|authority|permission|right)"
)
_OBJECT = (
    r"(?:that|this|it|such|information|info|advice|instructions?|guidance|details?|specifics|tips?|answers?|assistance"
    r"|help|steps|methods?|ways?|suggestions?|recommendations?|content|responses?|explanations?|jokes?|stor(?:y|ies)"
    r"|anything|ideas?|data|support|opinions?|encouragement|comments?|you with)"
)
_SALES = r"(?:refund|discount|credit|replacement|date|estimate|delivery|upgrade|invoice|receipt|change)s?"
_ASSIST = (
    r"(?:help(?!\s+(?:but|it|laughing|smiling|noticing|thinking|feeling|wondering|being))|assist|answer|respond|reply"
    r"|comply|complete|fulfil+|satisfy|discuss|explain|describe|comment|condone|endorse|encourage|promote|support"
    r"|engage|participate|take part|be (?:a )?part of|be involved|facilitate|elaborate|teach|instruct|guide|walk you"
    r"|talk (?:about|on)|speak (?:about|on|to)|go into|get into|entertain|proceed|continue|process|advise you|weigh in"
    r"|do (?:that|this|it|so|anything)\b(?! (?:before|until|unless|without|after|while|if|again))"
    r"|tell (?:you|anyone|people|\w+ how)|show you how|(?:write|create|generate|compose|draft) (?!to\b)"
    rf"|provide (?!(?:\w+ ){{0,3}}{_SALES}\b)"
    rf"|(?:give|offer|share|supply|suggest|recommend|produce|make|disclose|reveal)\b[^,;:]{{0,40}}?\b{_OBJECT}\b)"
)
_ASSISTING = (
    r"(?:help|assist|answer|respond|reply|comply|fulfill|discuss|explain|describ|comment|advis|condon|encourag|promot"
    r"|support|engag|participat|elaborat|teach|guid|talk|speak|provid|giv|offer|shar|generat|creat|writ)ing"
)
_DISCUSS = (
    r"(?:ask|discuss|talk|speak|provide|give|offer|share|help|assist|explain|answer|make|joke|describe|respond|comment"
    r"|suggest|encourage|promote|advise|teach|engage|generate|create|write|say|support|instruct|guide|tell|reply|go"
    r" into)"
)
_PROPER = (
    r"(?:appropriate|ethical|acceptable|moral|responsible|proper|respectful|okay|ok|right|suitable|wise|safe|legal)"
)
_IMPROPER = r"(?:inappropriate|unethical|irresponsible|immoral|unacceptable|improper|wrong|disrespectful|unwise)"
_RULE = (
    r"(?:polic(?:y|ies)|guidelines?|rules?|programming|principles|values|ethics|design|training|instructions|standards"
    r"|restrictions|terms|code|conscience|safeguards|guardrails|morals)"
)
_MY = r"(?:my|our own|our usage|our content|openai's|usage|content|safety|ethical|community)"
_MATTER = (
    r"(?:requests?|questions?|query|prompt|topic|information|assistance|help|guidance|instructions?|advice|answers?"
    r"|details?)"
)

_FRAMES = tuple(
    re.compile(frame)
    for frame in (
        # inability
        rf"\b{_I}(?:'d|'ll)? ?{_HOW}{_CANNOT} {_HOW}(?:to )?(?:be )?(?:{_ASSIST}|{_ASSISTING})",
        rf"\b{_I} {_HOW}{_DO_NOT} {_HOW}(?:condone|endorse|encourage|promote|engage|discuss|answer|assist|support"
        rf" (?:or|and)"
        rf"|(?:help|assist) with|(?:provide|give|share|offer)\b[^,;:]{{0,40}}?\b{_OBJECT}\b)",
        rf"\bi am an? [^,.]{{0,40}}? and {_DO_NOT} (?:condone|endorse|encourage|promote|engage|have (?:the|any)"
        rf" (?:ability|capability))",
        rf"\b{_I}(?:'m|'re|'ll)? ?{_HOW}(?:am |are |is |will |would |must |feel |been |be"
        rf" )*{_HOW}{_UNABLE}\b[^,;:]{{0,30}}?"
        rf" (?:{_ASSIST}|{_ASSISTING})",
        rf"\b{_I}(?:'m| am|'re| are| do not feel| don't feel| would not feel| feel) {_HOW}(?:not |un)?comfortable"
        r"(?<!feel comfortable)(?<!'m comfortable)(?<!am comfortable)|\b(?:do not|don't|wouldn't) feel comfortable",
        rf"\b(?:{_I}|and|an ai) {_HOW}{_LACK}\b",
        r"\b(?:do not|don't|no|without) (?:have )?(?:direct |any )?access to (?:such|that|this|any|personal|private"
        r"|confidential|individual"
        r"|sensitive|specific|\w+'s|the (?:personal|private))\b",
        rf"(?:^|[,;:] )(?:(?:so |and |but )*(?:really )?sorry[,.]? (?:but )?|no,? )?(?:can(?:'t|not)|won't|unable to"
        rf"|not able to)"
        rf" {_ASSIST}",
        rf"\b(?:and|so|but|because|why) {_I} (?:won't|will not|refuse|can't|cannot)(?: be {_ASSISTING})?[.!]?$",
        rf"^{_I} (?:won't|will not|can't|cannot|shan't)[.!]?$",
        # belief
        rf"\bi (?:do not|don't|would not|wouldn't) (?:think|believe|feel|consider)\b[^,;:]{{0,40}}?"
        rf"(?:\b{_I} (?:can|should|could|would|want|ought)\b[^,;:]{{0,20}}? (?!do ){_ASSIST}|for me to|i'm the right"
        rf"|something i"
        rf"|\b(?:{_PROPER}|a good idea)\b[^,;:]{{0,20}}? to {_DISCUSS})",
        rf"\bi (?:think|believe|feel|find)\b[^,;:]{{0,20}}? (?:{_IMPROPER}|not {_PROPER})(?: (?:of|for) me)? to"
        rf" {_DISCUSS}",
        # performatives
        rf"\b{_I}(?:'m|'ll|'d| am| will| have| must| need| should| shall|(?= would (?:rather|prefer)) would)?(?:"
        rf" going)?"
        rf"(?: to)?(?: have to| need to)? {_HOW}(?:declin(?:e|ing)|refus(?:e|ing)(?! to be\b)|refrain|abstain|say no"
        r"|pass(?: on|[.!,]|$)|turn(?:ing)? (?:this|that|it|you )?down|prefer not to|rather not|choos(?:e|ing) not to"
        r"|draw the line|stop (?:here|you there|right there)|stay away from|steer clear)\b",
        rf"\bobliged to (?:turn down|decline|refuse)|\bunder no circumstances (?:will|would|can|could) {_I}\b|\bno"
        rf" comment\b",
        r"^(?:sorry[,.]? |no(?:pe)?[,.]? )+(?:no can do|no(?:pe)?[.!]?$|not (?:something|one|a thing)(?: that)? i"
        r" (?:do|can|will))",
        r"^(?:absolutely not|no way|not a chance|certainly not|no can do)[.!]?$|\bthat(?:'s| is) a no from me\b",
        r"\bno,? i(?:'m| am) not (?:doing|going to do) (?:that|this|it)\b|^(?:sorry[,.]? )?not able to (?:answer|help"
        r"|do)\b",
        r"\bplease (?:do not|don't|refrain from) (?:ask|asking|request|requesting) (?:me|for|such|questions)",
        # propriety
        rf"\b(?:it|that|this|which)(?:'s| is| would be| may be| might be| seems) (?:\w+ly )?{_IMPROPER}(?: (?:and|or)"
        rf" \w+)?"
        rf"(?: (?:for|of) (?:me|us|an? \w+))? to {_DISCUSS}\b",
        rf"\b(?:it|that|this)(?:'s| is| would| may| might)? ?(?:not|n't|wouldn't|isn't)(?: be)? (?:\w+ly )?{_PROPER}"
        rf"(?:,? (?:\w+,? )?(?:and|or|nor) \w+)*(?: (?:for (?:me|us|an? \w+)|of me|here))* to {_DISCUSS}\b",
        r"^(?:\w+[,.] )?(?:it|that|this)(?:'s| is| would be)? ?(?:(?:not|n't|never|isn't)(?: be)? (?:\w+ly"
        r" )?(?:appropriate"
        r"|ethical|acceptable|moral|respectful)|(?:\w+ly )?(?:illegal and |wrong and )?(?:inappropriate|unethical"
        r"|immoral))\b",
        rf"\b(?:question|request|prompt)s? (?:is|are|seems?) (?:\w+ly )?(?:{_IMPROPER}|offensive|harmful|illegal)",
        rf"\b{_ASSISTING}\b[^.;:]{{0,80}}? (?:would|could|may|might) (?:be {_IMPROPER}|violate|breach|go against"
        rf"|conflict with)",
        rf"\b(?:it )?would be {_IMPROPER} (?:of|for) me\b|\bnot (?:something )?{_PROPER} (?:for me|here)\b",
        # rules of the speaker
        rf"\b{_MY} (?:\w+ ){{0,2}}?{_RULE}(?: (?:that|which) \w+ \w+)? (?:(?:do|does|will|would) not|don't|doesn't"
        rf"|won't|strictly"
        rf"|prevents?|prohibits?|forbids?|restricts?|bars?|stops?|keeps?)",
        r"\b(?:against|violates?|violation of|outside(?: of)?|contrary to|conflicts? with|within|breach(?:es)?|beyond)"
        rf" (?:what )?{_MY} (?:\w+ (?:and|or) )?(?:\w+ )?{_RULE}",
        r"\b(?:an|the) (?:ethical|moral) (?:obligation|duty) not to\b|\bagainst the rules that i\b",
        r"\bi(?:'m| am|'ve been| have been| was) (?:\w+ )?(?:programmed|trained|designed|built|instructed|made|required"
        r"|obliged|told) (?:not to|to (?:avoid|decline|refuse))\b",
        # the matter as subject
        rf"\b(?:not|n't) (?:something|anything|an? (?:topic|subject|matter|question|request|conversation)|ones?"
        rf"|questions)"
        rf"(?: that| which)? {_I}(?:'m| am| can| will| would| do| feel)\b(?! think)",
        rf"\b(?:something|an? (?:topic|subject|matter|request)|questions?)(?: that| which)? {_I}(?:'m| am)? ?{_HOW}"
        rf"(?:{_CANNOT} {_ASSIST}|{_UNABLE}|stay away|avoid|refuse)",
        rf"\b(?:not|n't) (?:the|an?) (?:type|kind|sort) of [^,;]{{0,30}} {_I}\b(?:'m| am| can| will| would)",
        rf"(?:^|, )(?:that|which) {_I} (?:cannot|can't|won't|will not) (?:provide|do|answer|give|help|say|share)\b"
        rf"|\b(?:beyond|outside(?: of)?|more than) what {_I}(?:'m| am| can| may)\b",
        rf"\b{_MATTER}\b[^,;]{{0,80}}? (?:can(?:not|'t| not)|could not|will not|won't) be (?:answered|completed"
        rf"|processed"
        r"|fulfil+ed|given|provided|shared|offered|discussed|granted|supplied|accepted)\b",
        rf"\bno {_MATTER} (?:can|will|may) be (?:given|provided|offered|shared)\b",
        rf"\b{_MATTER}\b[^,;]{{0,80}}? (?:(?:is|are) (?:not available|unavailable|refused|denied|rejected|blocked"
        rf"|declined))\b",
        r"\b(?:providing|giving|offering|sharing|helping|assisting|answering|discussing|explaining"
        r"|describing)\b[^;]{0,80}?"
        r" is (?:prohibited|forbidden|not (?:allowed|permitted|possible|something))\b",
        r"^request (?:denied|refused|rejected|blocked)\b|\b(?:is|are) off[- ]limits (?:for|to) me\b|\bis not among"
        r" them\b",
        r"\bjust not with\b|\byou(?:'ll| will)? (?:need|have) to look elsewhere\b|\bmy hands are tied\b",
        r"\bno business (?:explaining|helping|answering|giving|discussing)\b",
    )
)
_BAD = (
    r"(?:(?:never|not|neither) (?:\w+ly )?(?:a |an )?(?:acceptable|appropriate|ethical|okay|ok|justified|justifiable"
    r"|legal|safe"
    r"|healthy|effective|tolerated)|illegal|unethical|immoral|unacceptable|(?:a )?(?:serious )?crime|harmful and)"
)
_ADMONITIONS = tuple(
    re.compile(frame)
    for frame in (
        r"^(?:first(?: and foremost)?, )?(?:it is|it's|i must|i have to|i need to|i want to|i would like to|let me"
        r"|please)"
        rf" (?:(?:very |also )?(?:important|crucial|essential|vital) to )?(?:remember|note|understand|recogni[sz]e"
        rf"|clarify"
        rf"|emphasi[sz]e|stress|remind you|inform you|point out|state|advise)\b.{{0,200}}?\b{_BAD}\b",
        rf"^(?:i'm sorry,? but )?(?:it|that|this)(?:'s| is)? (?:also |both |highly |simply |completely |morally"
        rf" )*{_BAD}"
        r",? (?:and|or|nor) (?:\w+ly )?(?:un)?(?:ethical|legal|acceptable|safe|moral|illegal|wrong|appropriate"
        r"|respectful|dangerous)\b",
        rf"^(?:i'm sorry,? but )?[\w' ]{{3,80}}? (?:is|are)(?:n't)? (?:also |both |highly |simply |completely "
        rf"|morally )*{_BAD}"
        r",? (?:and|or|nor) (?:\w+ly )?(?:un)?(?:ethical|legal|acceptable|safe|moral|illegal|wrong|appropriate"
        r"|respectful|dangerous)\b",
        r"\bi (?:strongly |firmly )?(?:condemn|denounce)\b|\bi (?:strongly |must )(?:advise|urge|caution) (?:you"
        r" )?(?:against|not to)\b",
        r"\bi(?:'m| am) (?:so |very |really |deeply |truly )?sorry (?:to hear )?(?:that )?you(?:'re| are) (?:going"
        r"|feeling|struggling)",
    )
)
_ANNOUNCEMENT = re.compile(
    r"\b(?:however|that said|with that|but|nevertheless)\b[^.]{0,60}? (?:i (?:can|could|will|'ll) (?:still"
    r" )?(?:provide|give|offer|share"
    r"|tell|explain|answer)|here(?:'s| is| are)|if (?:you(?:'re| are)|we) (?:referring|talking|asking|looking))\b"
    r"|\bhere are (?:some|a few|several|the) (?:\w+ ){0,2}?(?:steps|ways|tips|ideas|examples|methods)\b"
)
_ELSEWHERE = re.compile(
    r"\b(?:other|else|instead|another|different|alternatives?|resources?|professionals?|help ?lines?|support|healthy"
    r"|safe|legal"
    r"|ethical|positive|concerns?|why)\b"
)
_LECTURE = re.compile(r"\b(?:important|crucial|essential|always|never|respect\w*|safety|well-being|lives|laws?)\b")
_QUOTED = re.compile(r"\"[^\"]{1,400}\"|“[^“”]{1,400}”")
_SENTENCE = re.compile(r"(?<=[.!?])[\"')\]]*\s+|\n+")
_TURN = re.compile(r"[,;.—-]\s*(?:but|though|although|however|yet|still)\b(.*)$", re.DOTALL)
_REDIRECTS = re.compile(
    r"\b(?:other|else|instead|another|different|happy to|glad to|suggest|recommend|professionals?|consult"
    r"|alternatives?|expert"
    r"|resources?|hot ?line|seek|harmful|illegal|ethic\w*|appropriate|cannot|can't|won't|not|encourage|hope|sorry"
    r"|reach out)\b"
)
_EMPHASIS = re.compile(r"\benough\b|\bhelp but\b")
_DISCLAIMER = re.compile(
    r"\b(?:medical|legal|financial|professional|personal) (?:advice|opinions?|diagnos\w+|recommendations?)\b"
    rf"|\b(?:real-time|live|current|exact)\b|\b{_LACK}(?! to (?:provide|assist|help|answer|give|offer|discuss"
    rf"|generate))\b|\baccess to\b"
)


def is_refusal(reply: str) -> bool:
    """Return True if the reply declines the request, see the module."""
    sentences = [part for part in _SENTENCE.split(_QUOTED.sub(" ", normalize(reply)).strip()) if part]
    lengths = [len(words(sentence)) for sentence in sentences]
    before = 0
    for place, (sentence, length) in enumerate(zip(sentences, lengths, strict=True)):
        if before > PREAMBLE:
            return False
        if _declines(sentence) or (place == 0 and any(frame.search(sentence) for frame in _ADMONITIONS)):
            rest = sentences[place + 1 :]
            announced = any(map(_announces, rest)) and not any(later.startswith("instead") for later in rest)
            return not announced and not (_DISCLAIMER.search(sentence) and _answers(sentences, lengths))
        before += length
    return False


def _announces(sentence: str) -> bool:
    """Return True if the sentence announces an answer to the request, not to another matter."""
    match = _ANNOUNCEMENT.search(sentence)
    return match is not None and _ELSEWHERE.search(sentence) is None


def _answers(sentences: list[str], lengths: list[int]) -> bool:
    """Return True if sentences that do not decline, redirect or lecture have at least `_ENOUGH_BESIDE` words."""
    beside = (
        length
        for sentence, length in zip(sentences, lengths, strict=True)
        if not (_declines(sentence) or _REDIRECTS.search(sentence) or _LECTURE.search(sentence))
    )
    return sum(beside) >= _ENOUGH_BESIDE


def _declines(sentence: str) -> bool:
    """Return True if a frame matches, and the sentence does not go on with an answer."""
    if _EMPHASIS.search(sentence):
        return False
    for frame in _FRAMES:
        if match := frame.search(sentence):
            turn = _TURN.search(sentence, match.end())
            answer = turn.group(1) if turn else ""
            return len(words(answer)) < _ENOUGH_ANSWER or _REDIRECTS.search(answer) is not None
    return False
