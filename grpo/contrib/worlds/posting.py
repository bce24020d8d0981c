"""Posts, comments and followers of BFCL.

    state   {"username", "password", "authenticated", "tweets": {id: {…}}, "comments": {id: [{…}]},
             "retweets": {user: [ids]}, "following_list": [users], "tweet_counter"}    ids are keys, so text

https://github.com/ShishirPatil/gorilla, Apache-2.0 (the tasks)
"""

from __future__ import annotations

from typing import Any

from grpo.agents.tools import ToolError
from grpo.environments.world import State, World


def _init_state(state: State) -> State:
    """Default: no posts, no followers."""
    defaults: State = {
        "username": "john",
        "password": "john123",
        "authenticated": False,
        "tweets": {},
        "comments": {},
        "retweets": {},
        "following_list": ["alice", "bob"],
        "tweet_counter": 0,
    }
    return {**defaults, **state}


def _logged_in(state: State) -> str:
    if not state["authenticated"]:
        raise ToolError("User not authenticated. Please authenticate first.")
    return str(state["username"])


def _tweet(state: State, tweet_id: int) -> dict[str, Any]:
    tweet = state["tweets"].get(str(tweet_id))
    if tweet is None:
        raise ToolError(f"Tweet with ID {tweet_id} not found.")
    return dict(tweet)


def authenticate_twitter(state: State, username: str, password: str) -> tuple[State, Any]:
    """Log in."""
    if (username, password) != (state["username"], state["password"]):
        return state, {"authentication_status": False}
    return {**state, "authenticated": True}, {"authentication_status": True}


def posting_get_login_status(state: State) -> tuple[State, Any]:
    """Login status."""
    return state, {"login_status": bool(state["authenticated"])}


def post_tweet(
    state: State, content: str, tags: list[str] | None = None, mentions: list[str] | None = None
) -> tuple[State, Any]:
    """Post a tweet."""
    tweet = {
        "id": state["tweet_counter"],
        "username": _logged_in(state),
        "content": content,
        "tags": tags or [],
        "mentions": mentions or [],
    }
    state["tweets"][str(tweet["id"])] = tweet
    state["tweet_counter"] += 1
    return state, tweet


def retweet(state: State, tweet_id: int) -> tuple[State, Any]:
    """Repost a tweet."""
    name = _logged_in(state)
    _tweet(state, tweet_id)
    mine = state["retweets"].setdefault(name, [])
    if tweet_id in mine:
        return state, {"retweet_status": "Already retweeted"}
    mine.append(tweet_id)
    return state, {"retweet_status": "Successfully retweeted"}


def comment(state: State, tweet_id: int, comment_content: str) -> tuple[State, Any]:
    """Comment on a tweet."""
    name = _logged_in(state)
    _tweet(state, tweet_id)
    state["comments"].setdefault(str(tweet_id), []).append({"username": name, "content": comment_content})
    return state, {"comment_status": "Comment added successfully"}


def mention(state: State, tweet_id: int, mentioned_usernames: list[str]) -> tuple[State, Any]:
    """Add mentions to a tweet."""
    _tweet(state, tweet_id)
    state["tweets"][str(tweet_id)]["mentions"] += mentioned_usernames
    return state, {"mention_status": "Users mentioned successfully"}


def follow_user(state: State, username_to_follow: str) -> tuple[State, Any]:
    """Follow a user."""
    _logged_in(state)
    if username_to_follow in state["following_list"]:
        return state, {"follow_status": False}
    state["following_list"].append(username_to_follow)
    return state, {"follow_status": True}


def unfollow_user(state: State, username_to_unfollow: str) -> tuple[State, Any]:
    """Unfollow a user."""
    _logged_in(state)
    if username_to_unfollow not in state["following_list"]:
        return state, {"unfollow_status": False}
    state["following_list"].remove(username_to_unfollow)
    return state, {"unfollow_status": True}


def list_all_following(state: State) -> tuple[State, Any]:
    """List followed users."""
    _logged_in(state)
    return state, {"following_list": list(state["following_list"])}


def get_tweet(state: State, tweet_id: int) -> tuple[State, Any]:
    """One tweet."""
    return state, _tweet(state, tweet_id)


def get_user_tweets(state: State, username: str) -> tuple[State, Any]:
    """Tweets of a user."""
    return state, [tweet for tweet in state["tweets"].values() if tweet["username"] == username]


def search_tweets(state: State, keyword: str) -> tuple[State, Any]:
    """Tweets with a word in text or tags, case-insensitive."""
    word = keyword.lower()
    return state, [
        tweet
        for tweet in state["tweets"].values()
        if word in tweet["content"].lower() or word in [tag.lower() for tag in tweet["tags"]]
    ]


def get_tweet_comments(state: State, tweet_id: int) -> tuple[State, Any]:
    """Comments on a tweet."""
    _tweet(state, tweet_id)
    return state, list(state["comments"].get(str(tweet_id), []))


def get_user_stats(state: State, username: str) -> tuple[State, Any]:
    """Numbers of tweets, followed users and retweets."""
    return state, {
        "tweet_count": sum(tweet["username"] == username for tweet in state["tweets"].values()),
        "following_count": len(state["following_list"]) if username == state["username"] else 0,
        "retweet_count": len(state["retweets"].get(username, [])),
    }


POSTING = World(
    state_key="TwitterAPI",
    init_state=_init_state,
    verify_results=True,
    functions={
        f.__name__: f
        for f in (
            authenticate_twitter, posting_get_login_status, post_tweet, retweet, comment, mention, follow_user,
            unfollow_user, list_all_following, get_tweet, get_user_tweets, search_tweets, get_tweet_comments,
            get_user_stats,
        )
    },
)  # fmt: skip
