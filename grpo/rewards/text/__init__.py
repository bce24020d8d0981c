"""Rewards on the text of replies: word lists and patterns in English, without a model."""
