from __future__ import annotations

from grpo.messages import Message, ToolCall
from grpo.rewards.learned.features import PromptedReply, hash_features, prompted_replies
from tests.grpo.rewards.learned.polite_replies import message


def test_features_depend_on_the_prompt_and_on_arguments_of_calls():
    """The same words after another question, and the same call with another argument, have other features."""
    calls = [
        Message(role="assistant", content="", tool_calls=(ToolCall(name="find", arguments={"city": city}),))
        for city in ("Rome", "Oslo")
    ]
    replies = [PromptedReply(prompt=(message("user", "movies in Rome"),), reply=call) for call in calls]
    replies += [
        PromptedReply(prompt=(message("user", request),), reply=message("assistant", "yes"))
        for request in ("may I?", "shall we?")
    ]
    features = hash_features(replies, buckets=1 << 20)
    buckets = [set(features[row].indices.tolist()) for row in range(4)]
    assert buckets[0] != buckets[1]
    assert buckets[2] != buckets[3]


def test_every_reply_of_a_conversation_has_the_messages_before_it():
    """Two replies, with one and three messages before them."""
    turns = [message("user", "a"), message("assistant", "b"), message("user", "c"), message("assistant", "d")]
    assert [(len(each.prompt), each.reply.content) for each in prompted_replies(turns)] == [(1, "b"), (3, "d")]
