"""Posts, comments and followers of BFCL."""

from __future__ import annotations

from tests.grpo.contrib.worlds.bfcl import run_calls


def test_posts_belong_to_the_logged_in_user():
    """Nothing is posted before; a comment needs its post; a second retweet fails."""
    results, state = run_calls(
        "TwitterAPI", {},
        ("post_tweet", {"content": "no"}), ("authenticate_twitter", {"username": "john", "password": "x"}),
        ("authenticate_twitter", {"username": "john", "password": "john123"}),
        ("post_tweet", {"content": "Hello", "tags": ["#a"]}), ("comment", {"tweet_id": 0, "comment_content": "Hi"}),
        ("comment", {"tweet_id": 5, "comment_content": "Hi"}), ("retweet", {"tweet_id": 0}),
        ("retweet", {"tweet_id": 0}), ("mention", {"tweet_id": 0, "mentioned_usernames": ["@b"]}),
        ("follow_user", {"username_to_follow": "alice"}),
        ("search_tweets", {"keyword": "#A"}),
    )  # fmt: skip
    assert "error" in results[0]
    assert results[1] == {"authentication_status": False}
    assert "error" in results[5]
    assert [results[6]["retweet_status"], results[7]["retweet_status"]] == [
        "Successfully retweeted",
        "Already retweeted",
    ]
    assert results[9] == {"follow_status": False}
    assert results[10] == [{"id": 0, "username": "john", "content": "Hello", "tags": ["#a"], "mentions": ["@b"]}]
    assert state["comments"] == {"0": [{"username": "john", "content": "Hi"}]}
