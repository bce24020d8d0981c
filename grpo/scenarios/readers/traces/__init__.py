"""Chats in exports of traces: runs and spans of the calls of a model."""
