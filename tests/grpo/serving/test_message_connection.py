from __future__ import annotations

import random
import socket
import threading
from typing import Any

import pytest

from grpo.serving.engine.message_connection import MessageConnection, frame, read_frame

MESSAGES = [None, [], {"a": 1}, list(range(70_000)), "ä", b"\x00" * 5]


def test_messages_arrive_whole_however_the_bytes_are_cut():
    """In pieces of 1 to 9 bytes, of thousands, and all at once."""
    data = b"".join(map(frame, MESSAGES))
    for most in (9, 5000, len(data)):
        numbers, received = random.Random(most), list[Any]()
        frames, place = MessageConnection(received.append, pytest.fail), 0
        while place < len(data):
            size = numbers.randint(1, most)
            frames.data_received(data[place : place + size])
            place += size
        assert received == MESSAGES


def test_a_message_is_waited_for_and_the_end_of_the_other_process_is_told():
    mine, other = socket.socketpair()
    with mine, other:
        sender = threading.Thread(target=lambda: (other.sendall(b"".join(map(frame, MESSAGES))), other.close()))
        sender.start()
        assert [read_frame(mine) for _ in MESSAGES] == MESSAGES
        with pytest.raises(EOFError):
            read_frame(mine)
        sender.join()


def test_a_message_that_is_cut_off_is_none():
    mine, other = socket.socketpair()
    with mine:
        other.sendall(frame(MESSAGES)[:-1])
        other.close()
        with pytest.raises(EOFError):
            read_frame(mine)


def test_nothing_is_sent_over_a_connection_that_is_lost_and_its_end_is_told_once():
    """Not after `close` either, which is the server's own."""
    ends: list[bool] = []
    frames = MessageConnection(lambda message: None, lambda: ends.append(True))
    frames.send("before it is made")
    frames.connection_lost(None)
    assert ends == [True]
    frames.send("after its end")
    frames.close()
    frames.connection_lost(None)
    assert ends == [True]
