"""Conversations and limits of several servers in one PostgreSQL database."""
