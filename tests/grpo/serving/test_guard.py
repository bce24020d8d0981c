"""The guard in front of an app: every route, every wrong credential, bodies and headers of any kind."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import time
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import AsyncMock

import jwt
import openai
import pytest
from fastapi import Depends, FastAPI, Request, WebSocket
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from grpo.config.serving import CallerLimits
from grpo.serving.access.callers import Caller
from grpo.serving.access.connections import ADMIT
from grpo.serving.access.guard import Authenticator, Guard, closing
from grpo.serving.access.jwt_tokens import TokenVerifier
from grpo.serving.access.keys import KeyStore
from grpo.serving.access.limits import Limiter
from grpo.serving.access.usage import LocalUsage
from grpo.serving.protocol.api_errors import install_error_handlers
from tests.grpo.serving.servers import request, serving

SECRET = "0123456789abcdef0123456789abcdef"
PUBLIC = {"/healthz", "/metrics"}
SCOPES: dict[str, Any] = {"/v1/chat": "chat", "/v1/feedback": "feedback", "/v1": "admin"}


class Chat(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: str
    messages: list[dict[str, Any]]


def _caller(request: Request) -> Caller:
    caller = request.scope["state"]["caller"]
    assert isinstance(caller, Caller)
    return caller


def _app(limiter: Limiter | None = None) -> FastAPI:
    app = FastAPI()
    install_error_handlers(app)

    @app.post("/v1/chat/completions")
    async def chat(body: Chat, caller: Annotated[Caller, Depends(_caller)]) -> dict[str, Any]:
        if limiter is not None:
            await (await limiter.reserve(caller, 10)).settle(10)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": caller.name}}
        return {"id": "1", "object": "chat.completion", "created": 1, "model": body.model, "choices": [choice]}

    @app.post("/v1/feedback")
    async def feedback(request: Request) -> int:
        return len(await request.body())

    @app.post("/v1/train")
    async def train() -> None:
        return None

    @app.get("/v1/train/{run}")
    async def training_run(run: str) -> str:
        return run

    @app.get("/healthz")
    async def health() -> str:
        return "ok"

    @app.get("/metrics")
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse("")

    @app.websocket("/v1/chat/stream")
    async def stream(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text(socket.scope["state"]["caller"].name)
        await socket.close()

    @app.websocket("/v1/events")
    async def events(socket: WebSocket) -> None:
        await socket.accept()

    app.mount("/files", Starlette(routes=[Route("/x", lambda request: PlainTextResponse("x"))]))
    return app


def _token(key: str | None = SECRET, **changes: Any) -> str:
    claims = {"sub": "ann", "iss": "i", "aud": "a", "exp": time.time() + 600, "scope": "chat feedback", **changes}
    return jwt.encode(claims, key, algorithm="HS256" if key else "none")


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    return KeyStore(tmp_path / "keys.json")


def _guard(keys: KeyStore, app: FastAPI | None = None, **options: Any) -> Guard:
    tokens = TokenVerifier(SECRET, algorithms=["HS256"], issuer="i", audience="a")
    return Guard(app or _app(), Authenticator(keys, tokens), public=PUBLIC, scopes=SCOPES, **options)


def _walk(routes: list[BaseRoute], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Method and path of every route, WEBSOCKET for a socket."""
    for route in routes:
        if isinstance(route, Mount):
            yield from _walk(list(route.routes), prefix + route.path)
        elif isinstance(route, WebSocketRoute):
            yield "WEBSOCKET", prefix + route.path
        else:
            assert isinstance(route, Route)
            for method in route.methods or ():
                yield method, prefix + route.path.replace("{run}", "7")


ROUTES = sorted({*_walk(list(_app().routes)), ("GET", "/"), ("GET", "/nowhere"), ("OPTIONS", "/v1/feedback")})
NEEDED = {
    path: "chat" if path.startswith("/v1/chat/") else "feedback" if path == "/v1/feedback" else "admin"
    for _, path in ROUTES
    if path not in PUBLIC
}


def _answer(client: TestClient, method: str, path: str, headers: list[tuple[str, str]]) -> tuple[int, Any, Any]:
    """Status, headers and body; 101 for a socket that is accepted."""
    if method != "WEBSOCKET":
        response = client.request(method, path, headers=headers)
        refused = response.status_code in (401, 403)
        return response.status_code, response.headers, response.json() if refused and response.content else None
    try:
        with client.websocket_connect(path, headers=dict(headers)):
            return 101, {}, None
    except WebSocketDenialResponse as denial:
        return denial.status_code, denial.headers, denial.json()


def test_the_walk_finds_every_kind_of_route():
    """Pages of FastAPI's own, a mounted app and sockets included."""
    assert {("GET", "/openapi.json"), ("GET", "/docs"), ("GET", "/files/x"), ("WEBSOCKET", "/v1/events")} <= set(ROUTES)
    assert len(ROUTES) >= 16


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_refuses_every_wrong_credential(keys: KeyStore, method: str, path: str):
    """401 in OpenAI's shape without a valid credential, 403 without the scope; public paths answer."""
    secret = keys.create("all", ["chat", "feedback", "admin"])
    revoked = keys.create("revoked", ["chat", "feedback", "admin"])
    keys.revoke("revoked")
    client = TestClient(_guard(keys))
    wrong = {
        "none": [],
        "empty": [("authorization", "")],
        "no key": [("authorization", "Bearer ")],
        "another scheme": [("authorization", f"Basic {secret}")],
        "bare": [("authorization", secret)],
        "wrong": [("authorization", f"Bearer {secret[:-1]}")],
        "longer": [("authorization", f"Bearer {secret}x")],
        "revoked": [("authorization", f"Bearer {revoked}")],
        "hash": [("authorization", f"Bearer {keys.list()[0].sha256}")],
        "expired": [("authorization", f"Bearer {_token(exp=1)}")],
        "alg=none": [("authorization", f"Bearer {_token(None)}")],
        "another signer": [("authorization", f"Bearer {_token('y' * 32)}")],
        "another audience": [("authorization", f"Bearer {_token(aud='b')}")],
        "another header": [("x-api-key", secret)],
    }
    if method != "WEBSOCKET":
        wrong["two headers"] = [("authorization", f"Bearer {secret}"), ("authorization", f"Bearer {secret}")]
    for name, headers in wrong.items():
        status, answered, body = _answer(client, method, path, headers)
        if path in PUBLIC:
            assert status == 200
            continue
        assert status == 401, name
        if method != "HEAD":  # which has no body
            assert list(body["error"]) == ["message", "type", "param", "code"]
            assert body["error"]["type"] == "invalid_request_error"
        assert answered["www-authenticate"] == "Bearer"
        assert secret not in str(body)
    assert _answer(client, method, f"{path}?api_key={secret}", [])[0] == (200 if path in PUBLIC else 401)
    for scope in ("chat", "feedback", "admin"):
        for credential in (keys.create(scope, [scope]), _token(scope=scope)):
            status, _, body = _answer(client, method, path, [("authorization", f"Bearer {credential}")])
            if NEEDED.get(path) in (None, scope):
                assert status not in (401, 403)
            else:
                assert status == 403
                if method != "HEAD":
                    assert body["error"]["code"] == "insufficient_scope"
                    assert f"needs the scope {NEEDED[path]}" in body["error"]["message"]


@pytest.mark.parametrize(
    "path",
    ["/v1/chats", "/v1/chatty/x", "/metrics/x", "//metrics", "/healthz%00", "/V1/chat/x"],
)
def test_a_path_beside_a_prefix_has_no_scope_of_it(keys: KeyStore, path: str):
    """Prefixes are whole segments, public paths exact: `/v1/chats` needs admin."""
    client = TestClient(_guard(keys), base_url="http://desk")
    status, _, _ = _answer(
        client, "GET", path, [("authorization", f"Bearer {keys.create('shop', ['chat', 'feedback'])}")]
    )
    assert status == 403


def test_the_longest_prefix_counts_behind_a_proxy_as_well(keys: KeyStore):
    """The proxy's own prefix is not a part of the path; public stays public there, and for a request without it."""
    secret = keys.create("shop", ["feedback"])
    client = TestClient(_guard(keys), root_path="/desk")
    headers = [("authorization", f"Bearer {secret}")]
    assert client.post("/desk/v1/feedback", headers=dict(headers), content=b"abc").json() == 3
    assert _answer(client, "GET", "/desk/v1/train/7", headers)[0] == 403
    assert [client.get(path).status_code for path in ("/desk/healthz", "/healthz")] == [200, 200]


def test_the_caller_reaches_the_app(keys: KeyStore):
    """By HTTP and by WebSocket, for a key and for a token; the scheme is written in any case."""
    client = TestClient(_guard(keys))
    body = {"model": "desk", "messages": []}
    for credential, name in ((keys.create("shop", ["chat"]), "shop"), (_token(), "ann")):
        headers = {"authorization": f"bEARER  {credential} "}
        answer = client.post("/v1/chat/completions", json=body, headers=headers).json()
        assert answer["choices"][0]["message"]["content"] == name
        with client.websocket_connect("/v1/chat/stream", headers=headers) as socket:
            assert socket.receive_text() == name


def test_a_server_without_denial_responses_closes_the_socket(keys: KeyStore):
    """1008, policy violation."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(_guard(keys)({"type": "websocket", "path": "/v1/events", "headers": []}, receive, send))
    assert [(message["type"], message["code"]) for message in sent] == [("websocket.close", 1008)]


def test_a_damaged_key_file_admits_nothing(keys: KeyStore, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """503 with the time to wait but without the cause, which is in the log; public paths answer."""
    headers = {"authorization": f"Bearer {keys.create('shop', ['chat'])}"}
    client = TestClient(_guard(keys))
    (tmp_path / "keys.json").write_text("{")
    response = client.post("/v1/chat/completions", json={}, headers=headers)
    assert (response.status_code, response.json()["error"]["type"]) == (503, "server_error")
    assert "keys.json" not in response.text
    assert float(response.headers["retry-after"]) > 0
    assert "no request is admitted, because credentials cannot be checked: " in caplog.text
    assert "keys.json is damaged" in caplog.text
    assert client.get("/healthz").status_code == 200


def test_a_real_server_refuses_a_handshake_with_the_error(keys: KeyStore):
    """401 and OpenAI's body in place of the upgrade."""
    secret = keys.create("shop", ["chat"])
    with serving(_guard(keys)) as port:
        for path, headers, status in (
            ("/v1/chat/stream", {}, 401),
            ("/v1/events", {"authorization": f"Bearer {secret}"}, 403),
        ):
            with (
                pytest.raises(InvalidStatus) as refused,
                connect(f"ws://127.0.0.1:{port}{path}", additional_headers=headers),
            ):
                pass
            assert refused.value.response.status_code == status
            assert b'{"error": {"message": ' in refused.value.response.body
        with connect(
            f"ws://127.0.0.1:{port}/v1/chat/stream", additional_headers={"authorization": f"Bearer {secret}"}
        ) as ws:
            assert ws.recv() == "shop"


def _post(body: bytes, secret: str, *headers: str, path: str = "/v1/feedback") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: desk", "connection: close", "content-type: application/json"]
    lines += [f"authorization: Bearer {secret}", *headers]
    if not any(header.startswith(("content-length", "transfer-encoding")) for header in headers):
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def _chunked(body: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:7], body[7:])) + b"0\r\n\r\n"


def test_a_response_that_closes_its_connection_says_so_once():
    """In the start of the response and in small letters, as ASGI asks for."""
    sent: list[dict[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(dict(message))

    start = {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]}
    body = {"type": "http.response.body", "body": b""}
    for message in (start, body):
        asyncio.run(closing(send)(message))
    assert sent == [{**start, "headers": [(b"a", b"b"), (b"connection", b"close")]}, body]


def test_bodies_are_bounded(keys: KeyStore):
    """1,000 bytes pass, 1,001 are a 413: with their length, in chunks, and announced without being sent."""
    secret = keys.create("shop", ["feedback"])
    with serving(_guard(keys, body_bytes=1000)) as port:
        for size, status in ((1000, b"200"), (1001, b"413"), (7000, b"413"), (100_000, b"413")):
            body = b"x" * size
            plain = request(port, _post(body, secret))
            chunked = request(port, _post(_chunked(body), secret, "transfer-encoding: chunked"))
            assert [answer.split(b" ")[1] for answer in (plain, chunked)] == [status] * 2
            assert (b'"code": "request_too_large"' in plain) == (size > 1000)
        announced = request(port, _post(b"", secret, "content-length: 999999999999"))
        assert announced.split(b" ")[1] == b"413"
        assert b"\r\nconnection: close\r\n" in announced.lower()
        for digits, status in ((18, b"413"), (19, b"400")):
            assert request(port, _post(b"", secret, f"content-length: {'9' * digits}")).split(b" ")[1] == status
        assert request(port, _post(b"x" * 1000, "wrong")).split(b" ")[1] == b"401"


@pytest.mark.parametrize("path", ["/v1/feedback", "/files/x"])
@pytest.mark.parametrize(
    ("headers", "is_refused"),
    [
        (["content-encoding: gzip"], True),
        (["Content-Encoding: GZIP, identity"], True),
        (["content-encoding: identity", "content-encoding: br"], True),
        (["content-encoding: gzip", "content-length: 0"], False),
        (["content-encoding: Identity"], False),
        (["content-encoding:"], False),
    ],
)
def test_a_compressed_body_is_refused(keys: KeyStore, path: str, headers: list[str], is_refused: bool):
    """Status 415 with the name of the header and the remedy, also where the route reads the body itself."""
    secret = keys.create("shop", ["feedback", "admin"])
    with serving(_guard(keys, streamed="/files")) as port:
        body = b"" if "content-length: 0" in headers else gzip.compress(b"{}") if is_refused else b"{}"
        answer = request(port, _post(body, secret, *headers, path=path))
    assert answer.startswith(b"HTTP/1.1 415 ") == is_refused
    if is_refused:
        assert b"\r\naccept-encoding: identity\r\n" in answer
        message = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
        assert message.startswith("content-encoding: this server does not read ")
        assert message.endswith("send the body without compression")


@pytest.mark.parametrize(
    ("path", "without"),
    [
        ("/v1/train/", "/v1/train"),
        ("/v1/train//", "/v1/train"),
        ("/v1/users/ann/", "/v1/users/ann/"),
        ("/", "/"),
        ("/root/v1/train/", "/root/v1/train"),
        ("/root/", "/root/"),
    ],
)
def test_the_last_slash_of_an_exact_path_is_dropped(path: str, without: str):
    """The name of a user keeps it, and so does the prefix of a proxy."""
    seen: list[str] = []

    async def app(connection: Scope, receive: Receive, send: Send) -> None:
        seen.append(connection["path"])

    public = {"/v1/train", "/v1/users/ann/", "/"}
    guard = Guard(app, lambda credential: _nobody(), public=public, exact={"/v1/train"})
    root = "/root" if path.startswith("/root") else ""
    connection = {"type": "http", "method": "GET", "path": path, "root_path": root, "headers": []}
    asyncio.run(guard(connection, AsyncMock(), AsyncMock()))
    assert seen == [without]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"model": "\\ud83d\\ude00", "messages": []}', 200),  # a pair of surrogates is an emoji
        (b'{"model": "\\\\ud800", "messages": []}', 200),  # an escaped backslash
        (b'{"model": "\\uD800", "messages": []}', 400),
        (b'{"model": "a", "messages": [{"content": "\\ude00\\ud83d"}]}', 400),
        (b'{"model": "a", "messages": [{"\\udfff": 1}]}', 400),
        (b'{"model": "\\ud800', 400),
        (b"[" * 100_000 + b"\\ud800", 400),
    ],
)
def test_half_a_surrogate_pair_does_not_reach_the_app(keys: KeyStore, body: bytes, status: int):
    """Strings of Python hold it, UTF-8 does not: tokenizers, logs and responses would fail on it."""
    headers = {"authorization": f"Bearer {keys.create('shop', ['chat'])}", "content-type": "application/json"}
    response = TestClient(_guard(keys)).post("/v1/chat/completions", content=body, headers=headers)
    assert response.status_code == status
    assert ("half of a surrogate pair" in response.text) == (b"\\u" in body and status == 400 and body[-1:] == b"}")


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "\xed\xa0\x80", "messages": []}',
        '{"model": "\\ud800", "messages": []}'.encode("utf-16-le"),
        '{"model": "a", "messages": []}'.encode("utf-32-be"),
        b'{"model": "\xff", "messages": []}',
    ],
)
def test_a_body_is_utf_8(keys: KeyStore, body: bytes):
    """Python's JSON parser reads surrogates that were encoded, and UTF-16, in which their escapes look otherwise."""
    headers = {"authorization": f"Bearer {keys.create('shop', ['chat'])}", "content-type": "application/json"}
    response = TestClient(_guard(keys)).post("/v1/chat/completions", content=body, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_text")


def test_a_client_that_leaves_does_not_reach_the_app(keys: KeyStore):
    """A body that is announced and not sent."""
    reached: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    messages = iter([{"type": "http.request", "body": b"a", "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        reached.append(message)

    credential = f"Bearer {keys.create('shop', ['admin'])}".encode()
    headers = [(b"content-length", b"9"), (b"authorization", credential)]
    connection = {"type": "http", "path": "/x", "method": "POST", "headers": headers}
    asyncio.run(Guard(app, Authenticator(keys))(connection, receive, send))
    assert reached == []


def test_the_app_hears_of_a_client_that_leaves_later(keys: KeyStore):
    """The whole body first, then what the server receives."""
    heard: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        heard.extend([await receive(), await receive()])

    messages = iter(
        [
            {"type": "http.request", "body": b"a", "more_body": True},
            {"type": "http.request", "body": b"b", "more_body": False},
            {"type": "http.disconnect"},
        ]
    )

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        raise AssertionError

    headers = [(b"authorization", f"Bearer {keys.create('shop', ['admin'])}".encode())]
    connection = {"type": "http", "path": "/x", "method": "POST", "headers": headers}
    asyncio.run(Guard(app, Authenticator(keys))(connection, receive, send))
    assert heard == [{"type": "http.request", "body": b"ab", "more_body": False}, {"type": "http.disconnect"}]


def hostile(draw: random.Random, secret: str) -> bytes:
    """A request with a fault of some kind."""
    noise = draw.randbytes(draw.randint(0, 300))
    word = noise.decode("latin-1").replace("\r", "").replace("\n", "")
    chat = "/v1/chat/completions"
    return draw.choice(
        [
            lambda: noise,
            lambda: _post(noise, secret, path=chat),
            lambda: _post(b'{"model": "' + noise + b'", "messages": []}', secret, path=chat),
            lambda: _post(b'{"model": "a", "messages": [' + b"[" * draw.randint(1, 30_000), secret, path=chat),
            lambda: _post(b'{"model": "\\ud800\\u0000", "messages": [{"\\udfff": 1e999}]}', secret, path=chat),
            lambda: _post(b'{"\\ud800": 1}', secret, path=chat),
            lambda: _post(b'{"model": %s}' % (b"9" * draw.randint(1, 9000)), secret, path=chat),
            lambda: _post(_chunked(noise)[: draw.randint(0, 300)], secret, "transfer-encoding: chunked", path=chat),
            lambda: _post(
                noise,
                secret,
                f"content-length: {draw.choice(['-1', '1e3', '9' * 30, '', '0x1', '٣'.encode().decode('latin-1')])}",
            ),
            lambda: _post(b"", secret, "x-big: " + "y" * draw.choice([60_000, 66_000, 200_000])),
            lambda: _post(b"", secret, *(f"x-{k}: 1" for k in range(draw.choice([100, 9000])))),
            lambda: _post(b"", secret, f"x-noise: {word}"),
            lambda: _post(b"", f"{secret}{word}"),
            lambda: _post(b"", f"{word}.{word}.{word}"),
            lambda: _post(b"", secret, path="/v1/" + word.replace(" ", "")),
            lambda: _post(b"", secret, path="/v1/none/%00%ff%f0%9f" + "%2e%2e/" * draw.randint(0, 99)),
            lambda: _post(b"", secret, "upgrade: websocket", "connection: upgrade", f"sec-websocket-key: {word}"),
            lambda: _post(b"{}", secret, path=chat)[: draw.randint(0, 200)],
        ]
    )()


def test_no_bytes_make_the_server_fail(keys: KeyStore):
    """400 hostile requests: no 5xx, no hang, and the server answers a plain one afterwards."""
    secret = keys.create("shop", ["chat", "feedback", "admin"])
    draw = random.Random(0)
    statuses: dict[str, int] = {}
    with serving(_guard(keys)) as port:
        for _ in range(400):
            content = hostile(draw, secret)
            answer = request(port, content, patience_s=0.05)
            status = answer.split(b" ")[1].decode() if answer.startswith(b"HTTP/1.1 ") else "closed"
            statuses[status] = statuses.get(status, 0) + 1
            assert not status.startswith("5"), content[:300]
        assert request(port, _post(b"abc", secret)).endswith(b"\r\n\r\n3")
    assert {"400", "401", "404", "431"} <= set(statuses)


def test_the_client_of_openai_waits_as_long_as_it_is_asked_to(keys: KeyStore):
    """Refused with 429 while the window is full, it tries again by itself when there is room, and succeeds."""
    window = {"jump": 0.0}
    limiter = Limiter(LocalUsage(clock=lambda: time.monotonic() + window["jump"]))
    secret = keys.create("shop", ["chat"], CallerLimits(requests_per_minute=1))
    message: Any = {"role": "user", "content": "hello"}
    with (
        serving(_guard(keys, _app(limiter))) as port,
        openai.OpenAI(api_key=secret, base_url=f"http://127.0.0.1:{port}/v1", max_retries=0) as client,
    ):
        client.chat.completions.create(model="desk", messages=[message])
        with pytest.raises(openai.RateLimitError) as refused:
            client.chat.completions.create(model="desk", messages=[message])
        assert refused.value.code == "rate_limit_exceeded"
        assert refused.value.response.headers["x-ratelimit-remaining-requests"] == "0"
        window["jump"] = 59.0  # a second of the window is left
        tries = client.with_options(max_retries=1).chat.completions.with_raw_response
        answered = tries.create(model="desk", messages=[message])
        assert (answered.status_code, answered.retries_taken) == (200, 1)
        wrong = client.with_options(api_key="sk-grpo-wrong")
        with pytest.raises(openai.AuthenticationError, match="the API key is not known, or was revoked"):
            wrong.chat.completions.create(model="desk", messages=[message])
        with pytest.raises(openai.PermissionDeniedError, match="needs the scope admin"):
            client.models.list()


@pytest.mark.parametrize("length", [b"content-length: 5", b"transfer-encoding: chunked", b"content-length: 250000"])
def test_a_public_path_is_answered_without_its_body(length: bytes):
    """The body never arrives: the answer comes at once, and the connection is closed after it."""
    guard = Guard(_app(), lambda credential: _nobody(), public=PUBLIC)
    with serving(guard) as port:
        answer = request(port, b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + length + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"connection: close" in answer


def _nobody() -> Caller:
    raise AssertionError("no path of this test needs a caller")


@pytest.mark.parametrize(
    ("path", "credential", "is_admitted"),
    [
        ("/v1/train/1", "right", True),
        ("/v1/train/1", "wrong", False),
        ("/healthz", "right", False),
        ("/v1/train/1", "", False),
    ],
)
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_a_connection_is_admitted_by_a_key_only(
    keys: KeyStore, kind: str, path: str, credential: str, is_admitted: bool
):
    """The server closes others in favour of new connections, also those of public paths."""
    admitted: list[bool] = []
    secret = keys.create("shop", ("admin",))
    headers = {"authorization": f"Bearer {secret if credential == 'right' else credential}"} if credential else {}
    guard = _guard(keys)

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        scope.setdefault("state", {})[ADMIT] = lambda: admitted.append(True)
        await guard(scope, receive, send)

    client = TestClient(app)
    if kind == "http":
        client.get(path, headers=headers)
    else:
        with suppress(WebSocketDenialResponse, WebSocketDisconnect), client.websocket_connect(path, headers=headers):
            pass
    assert bool(admitted) == is_admitted
