"""A headless Chromium that opens pages and takes pictures, driven over its own DevTools protocol."""

from __future__ import annotations

import base64
import itertools
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

_ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run", "--hide-scrollbars", "--remote-debugging-port=0"),
)
STRANGER = "stranger.example"
"""A name that the browser finds on this machine, as a page does that has its own name lead to 127.0.0.1."""
_HOSTS = f"--host-resolver-rules=MAP {STRANGER} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
"""A page that asks for anything else gets nothing."""
_PATIENCE_S = 300.0
_STILL = 4
"""So many pictures, a second apart, are the same when a page is drawn."""


class Page:
    """One tab."""

    def __init__(self, socket: ClientConnection, session: str) -> None:
        self._socket = socket
        self._session = session
        self._numbers = itertools.count(1000)
        self.asked: list[str] = []
        """Addresses that the page has asked for."""
        self.answered: list[tuple[str, int]] = []
        """Addresses that have answered, and the status of each answer, also where the page may not see it."""
        self.challenges = 0
        """How often a server has asked the browser for a login."""
        self._login: tuple[str, str] | None = None
        self._documents = 0
        """Documents that have been loaded since the events of the page are on."""
        self.wait("document.readyState === 'complete'")
        self.send("Network.enable")
        self.send("Page.enable")

    def open(self, url: str) -> None:
        """Go to an address, until its document is there."""
        self._load("Page.navigate", url=url)

    def reload(self) -> None:
        """Load the document again: what is asked afterwards is asked of the new one."""
        self._load("Page.reload")

    def sign_in(self, login: tuple[str, str] | None) -> None:
        """Answer servers that ask for a login as a person does in the dialog; None cancels it."""
        self._login = login
        self.send("Fetch.enable", handleAuthRequests=True)

    def _load(self, method: str, **parameters: str) -> None:
        before = self._documents
        self.send(method, **parameters)
        while self._documents == before:
            self._receive()

    def wait(self, condition: str) -> None:
        """Wait until this JavaScript expression is true."""
        deadline = time.monotonic() + _PATIENCE_S
        while not self.evaluate(f"Boolean({condition})"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{condition} did not come true; the page says: {self.evaluate(_TEXT)}")
            time.sleep(0.2)

    def evaluate(self, expression: str) -> Any:
        """Value of a JavaScript expression."""
        return self.send("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def settled(self, *, x: int, width: int, height: int) -> bytes:
        """A PNG of this part of the window, from its top, when nothing in it moves any more."""
        clip = {"x": x, "y": 0, "width": width, "height": height, "scale": 1}
        seen: list[str] = []
        while len(seen) < _STILL or len(set(seen[-_STILL:])) > 1:
            time.sleep(1.0)
            seen.append(self.send("Page.captureScreenshot", format="png", clip=clip)["data"])
        return base64.b64decode(seen[-1])

    def size(self, *, width: int, height: int) -> None:
        """Lay the page out for a window of this many pixels."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Answer to one command."""
        number = self._post(method, **parameters)
        while (answer := self._receive()).get("id") != number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return dict(answer["result"])

    def _post(self, method: str, **parameters: Any) -> int:
        """Send a command without waiting for its answer; returns the number of it."""
        number = next(self._numbers)
        self._socket.send(
            json.dumps({"id": number, "method": method, "params": parameters, "sessionId": self._session})
        )
        return number

    def _receive(self) -> dict[str, Any]:
        """The next message of the browser; notes which addresses were asked for and which documents are there."""
        message = dict(json.loads(self._socket.recv(_PATIENCE_S)))
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.asked.append(message["params"]["request"]["url"])
            case "Network.responseReceived":
                answer = message["params"]["response"]
                self.answered.append((answer["url"], answer["status"]))
            case "Fetch.requestPaused":
                self._post("Fetch.continueRequest", requestId=message["params"]["requestId"])
            case "Fetch.authRequired":
                self.challenges += 1
                reply = {"response": "CancelAuth"}
                if self._login is not None:
                    reply = {"response": "ProvideCredentials", "username": self._login[0], "password": self._login[1]}
                request = message["params"]["requestId"]
                self._post("Fetch.continueWithAuth", requestId=request, authChallengeResponse=reply)
            case "Page.domContentEventFired":
                self._documents += 1
        return message


_TEXT = "document.body ? document.body.innerText.slice(0, 500) : ''"


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A browser with an empty profile and one blank page; it is ended with the block."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise FileNotFoundError("chromium is not installed: apt-get install chromium")
    process = subprocess.Popen(
        [chromium, *_ARGUMENTS, _HOSTS, f"--user-data-dir={profile}", "about:blank"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        address = next(found[0] for line in process.stderr if (found := re.findall(r"ws://\S+", line)))
        with connect(address, max_size=None) as socket:
            yield _tab(socket)
    finally:
        process.terminate()
        process.communicate()


def _tab(socket: ClientConnection) -> Page:
    target = _command(socket, 1, "Target.createTarget", url="about:blank")["targetId"]
    session = _command(socket, 2, "Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    return Page(socket, session)


def _command(socket: ClientConnection, number: int, method: str, **parameters: Any) -> dict[str, Any]:
    socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
    while (heard := json.loads(socket.recv(_PATIENCE_S))).get("id") != number:
        pass
    return dict(heard["result"])
