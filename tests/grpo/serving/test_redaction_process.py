from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo.errors import DataError
from grpo.messages import Message, ToolCall
from grpo.scenarios.redaction import redact_messages
from grpo.serving.mirror.redaction_process import RedactionProcess
from tests.waiting import until

MAIL = [
    Message(role="user", content="I am Anna Bell, anna@example.org."),
    Message(role="assistant", content="", tool_calls=(ToolCall(name="find", arguments={"email": "anna@example.org"}),)),
]


@pytest.fixture
def redaction() -> Iterator[RedactionProcess]:
    process = RedactionProcess()
    yield process
    process.close()


def test_another_process_redacts_as_this_one_does(redaction: RedactionProcess):
    """Pseudonyms are those of the conversation's id."""
    assert redaction.redact("conversation-c", MAIL) == redact_messages("conversation-c", MAIL)
    assert redaction.pid not in (None, os.getpid())


def test_a_text_of_megabytes_takes_no_time_of_this_process(redaction: RedactionProcess):
    """Of the processor's time, which the interpreter's lock would take from the event loop, a tenth at most."""
    redaction.redact("conversation-c", MAIL)
    pid, text = redaction.pid, [Message(role="user", content="call 4155550132 " * 60_000)]

    def seconds_there() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    here, there = time.process_time(), seconds_there()
    redaction.redact("conversation-d", text)
    assert time.process_time() - here < (seconds_there() - there) / 10


def test_a_process_that_died_is_started_again(redaction: RedactionProcess):
    """The conversation after its death is redacted by the next one."""
    redaction.redact("conversation-c", MAIL)
    first = redaction.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert redaction.redact("conversation-c", MAIL) == redact_messages("conversation-c", MAIL)
    assert redaction.pid != first


def test_a_conversation_that_cannot_be_redacted_is_refused_without_its_text(redaction: RedactionProcess):
    """600 levels of nesting are more than the redaction's recursion takes; the next conversation is redacted."""
    nested: object = "anna@example.org"
    for _ in range(600):
        nested = [nested]
    deep = Message(role="assistant", content="", tool_calls=(ToolCall(name="f", arguments={"deep": nested}),))
    with pytest.raises(DataError, match=r"^conversation-deep cannot be redacted: \w+$"):
        redaction.redact("conversation-deep", [deep])
    assert redaction.redact("conversation-c", MAIL) == redact_messages("conversation-c", MAIL)


def test_a_closed_redaction_refuses_no_conversation(redaction: RedactionProcess):
    """The mirror sends the record at its next start: it is an error of the connection."""
    redaction.close()
    with pytest.raises(ConnectionError, match="closed"):
        redaction.redact("conversation-c", MAIL)


def test_the_process_ends_with_the_server(tmp_path: Path):
    """Also when the server is killed."""
    program = (
        "from grpo.messages import Message\n"
        "from grpo.serving.mirror.redaction_process import RedactionProcess\n"
        "redaction = RedactionProcess()\n"
        "redaction.redact('c', [Message(role='user', content='Hello')])\n"
        "print(redaction.pid, flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        server.kill()
    until("the redaction ends", lambda: not _runs(pid), patience_s=240)


def _runs(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
