"""A real server on loopback that speaks OpenAI's protocol, or fails to."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from grpo.policy.openai_endpoint import OpenAIEndpoint

Answer = Callable[[dict[str, Any]], tuple[Any, ...]]
"""From the body of a request to a status and a body, with further headers where it likes."""

CLOSED, HALF, DRIPPING = "(closed)", "(half)", "(dripping)"
"""Bodies of a server that hangs up, that hangs up in the middle, and that sends spaces for ever."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 64  # a connection that finds no place here is tried again after a second


class Model:
    """A small server on loopback that answers request k with `answers[k]`, the last again and again."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.encodings: list[str] = []
        self.hang = threading.Event()
        self.at_once = 0
        self.most_at_once = 0
        lock = threading.Lock()
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    model.keys.append(self.headers["Authorization"])
                    model.encodings.append(self.headers["Accept-Encoding"])
                    model.asked.append({"path": self.path, **body})
                    answer = model.answers[min(len(model.asked), len(model.answers)) - 1]
                    model.at_once += 1
                    model.most_at_once = max(model.most_at_once, model.at_once)
                try:
                    self.reply(*answer(body))
                finally:
                    with lock:
                        model.at_once -= 1

            def reply(self, status: int, answer: object, headers: dict[str, str] | None = None) -> None:
                text = answer if isinstance(answer, str) else json.dumps(answer)
                if text == CLOSED:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Type", "text/html" if text.startswith("<") else "application/json")
                longer = 1000 if text in (HALF, DRIPPING) else 0
                self.send_header("Content-Length", str(len(text.encode()) + longer))
                for name, value in (headers or {"retry-after-ms": "1"}).items():
                    self.send_header(name, value)
                self.end_headers()
                while text == DRIPPING and not model.hang.wait(0.02):
                    self.wfile.write(b" ")
                self.wfile.write(text.encode())
                self.close_connection = bool(longer)

            def log_message(self, *arguments: object) -> None:
                """Nothing on the terminal."""

        self.http = _Server(("127.0.0.1", 0), Handler)
        self.http.handle_error = lambda *where: None  # type: ignore[method-assign]
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def hanging(self, body: dict[str, Any]) -> tuple[int, object]:
        """Answer only when the test is over."""
        self.hang.wait(240)
        return 500, {}

    def server(self, **changes: Any) -> OpenAIEndpoint:
        return OpenAIEndpoint(base_url=self.url, model="clerk", **changes)

    def close(self) -> None:
        self.hang.set()
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


def says(content: object, *, prompt_tokens: int | None = 100, completion_tokens: int = 20) -> Answer:
    """A chat completion with these words, which reports what it used."""
    usage = prompt_tokens and {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}
    document = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
    return lambda body: (200, document)


def judges(score: Callable[[str, int], float], **usage: int | None) -> Answer:
    """A judge that follows its instructions: `score(what the agent said, place)` for each conversation."""

    def answer(body: dict[str, Any]) -> tuple[Any, ...]:
        scores = [
            {"label": label, "score": score(said, place), "reason": f"place {place}"}
            for place, (label, said) in enumerate(conversations(body).items())
        ]
        return says(json.dumps({"scores": scores}), **usage)(body)

    return answer


def conversations(body: dict[str, Any]) -> dict[str, str]:
    """Contents of all messages under each label, by the tags alone."""
    prompt = body["messages"][1]["content"]
    found = re.findall(r'<conversation label="(.*?)">\n(.*?)\n?</conversation>', prompt, flags=re.DOTALL)
    return {label: " ".join(json.loads(line)["content"] for line in text.splitlines()) for label, text in found}
