"""Requests that show whether an address belongs to a server of Prefect or MLflow that commands can use.

A health page is not enough. A login page or another program may answer it with HTTP 200, and a server answers it also
while its database is down. MLflow's client takes an empty reply for an empty registry, and tries again for four minutes
if the server answers 500. Therefore a server also has to state its version, and to answer a call that reads its
records.
"""

from __future__ import annotations

import re
import time

import httpx

from grpo.storage.credentials import masked
from grpo_local.login import LOGIN_REMEDIES, Server

NAMES: dict[Server, str] = {"prefect": "Prefect's server", "mlflow": "MLflow"}
UNKNOWN = "unknown version"
_VERSIONS: dict[Server, str] = {"prefect": "/admin/version", "mlflow": "/version"}
_RECORDS: dict[Server, str] = {"prefect": "/ready", "mlflow": "/api/2.0/mlflow/experiments/search?max_results=1"}
"""Calls that read the database, and that a server answers with a JSON object."""
_EXAMPLES: dict[Server, str] = {"prefect": "http://HOST:4200/api", "mlflow": "http://HOST:5000"}
_VERSION = re.compile(r"[0-9]+\.[0-9][\w.+-]*")
_ANSWER_S, _RECORDS_S = 5, 20
_ATTEMPTS, _PAUSE_S = 3, 1.0


class UnusableServer(Exception):
    """A server that commands cannot use. `wrong_input` is True if its address is wrong."""

    def __init__(self, detail: str, remedy: str, *, wrong_input: bool = False) -> None:
        super().__init__(f"{detail}. {remedy}")
        self.detail, self.remedy, self.wrong_input = detail, remedy, wrong_input


def served_version(server: Server, url: str, *, setting: str, login: str | None) -> str:
    """Version of the server at an address, or `UNKNOWN` if it does not state it. Raises `UnusableServer`.

    `setting` is the variable that names the address, `login` is `USER:PASSWORD`.
    """
    basic = None if login is None else httpx.BasicAuth(*login.partition(":")[::2])
    with httpx.Client(timeout=_ANSWER_S, follow_redirects=True, auth=basic) as client:
        return _Server(client, server, url, setting).version()


class _Server:
    """A server that is asked. Its messages name it, its address and the setting."""

    def __init__(self, client: httpx.Client, server: Server, url: str, setting: str) -> None:
        self._client, self._server, self._url = client, server, url.rstrip("/")
        self._name = f"{NAMES[server]} at {masked(url)}"
        self._elsewhere = f"set {setting} to one that runs"
        self._address = f"Set {setting} to its address, such as {_EXAMPLES[server]}"

    def version(self) -> str:
        """See `served_version`."""
        self._get("/health", attempts=_ATTEMPTS)
        served = self._get(_VERSIONS[self._server])
        text = UNKNOWN if served is None else served.text[:1000].strip().strip('"')
        if served is not None and _VERSION.fullmatch(text) is None:
            raise self._other_program(_VERSIONS[self._server], text)
        records = self._get(_RECORDS[self._server], timeout_s=_RECORDS_S)
        if records is not None and not _is_object(records):
            raise self._other_program(_RECORDS[self._server], records.text[:1000].strip())
        return text

    def _get(self, path: str, *, attempts: int = 1, timeout_s: float = _ANSWER_S) -> httpx.Response | None:
        """The reply to GET. None if the server does not have the page, unless it is the first one that is asked."""
        try:
            reply = self._reply(self._url + path, attempts, timeout_s)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            reason = masked(str(error) or type(error).__name__, known=self._url).splitlines()[0].rstrip(".")
            wrong_input = not isinstance(error, httpx.HTTPError) or isinstance(error, httpx.UnsupportedProtocol)
            remedy = self._address if wrong_input else f"Start it, or {self._elsewhere}"
            raise UnusableServer(f"{self._name} does not answer: {reason}", remedy, wrong_input=wrong_input) from error
        code = reply.status_code
        if code == httpx.codes.NOT_FOUND and path != "/health":
            return None
        if code == httpx.codes.UNAUTHORIZED:
            raise UnusableServer(f"{self._name} refuses the login", LOGIN_REMEDIES[self._server])
        if not reply.is_success:
            page = "html" in reply.headers.get("content-type", "")
            reason = "" if page or not reply.text.strip() else f" ({_shortened(reply.text)})"
            detail = f"{self._name} cannot be used: it answers GET {reply.url.path} with HTTP {code}{reason}"
            raise UnusableServer(
                detail, f"Look into its log and the log of a proxy in front of it, or {self._elsewhere}"
            )
        return reply

    def _reply(self, url: str, attempts: int, timeout_s: float) -> httpx.Response:
        """GET. If the connection is dropped, it is tried again."""
        for left in reversed(range(attempts)):
            try:
                return self._client.get(url, timeout=timeout_s)
            except httpx.UnsupportedProtocol:
                raise
            except httpx.TransportError:
                if not left:
                    raise
                time.sleep(_PAUSE_S)
        raise AssertionError("at least one attempt is made")

    def _other_program(self, path: str, text: str) -> UnusableServer:
        reply = repr(_shortened(text)) if text else "an empty reply"
        detail = f"{masked(self._url)} is not {NAMES[self._server]}: it answers GET {path} with {reply}"
        return UnusableServer(
            detail, f"{self._address}, and check the log of its proxy, if it has one", wrong_input=True
        )


def _shortened(text: str) -> str:
    return " ".join(text.split())[:100]


def _is_object(reply: httpx.Response) -> bool:
    try:
        return isinstance(reply.json(), dict)
    except ValueError:
        return False
