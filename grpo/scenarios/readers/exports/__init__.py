"""Chats as programs export them, and files with one chat or one logged object in each record."""
