"""A server on loopback that speaks the protocol of the Hugging Face hub, or fails to."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

_LARGE = 1000
"""Bytes from which a file is listed as a large one, with its sha256."""
_API = re.compile(r"/api/(models|datasets)/(?P<repo>[^/]+/[^/]+)(/(?P<kind>revision|tree)/(?P<revision>.+))?")
_FILE = re.compile(r"(/datasets)?/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<name>.+)")


@dataclass
class HubRepo:
    """A model on the server: commits, branches, and its faults."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    refusal: tuple[int, str] | None = None
    """Status and X-Error-Code of the answers to requests without the token."""
    lists_to_all: bool = False
    """True for a gated model, whose files alone are refused."""
    token: str = ""
    cuts: dict[str, list[int]] = field(default_factory=dict)
    """Bytes of a file after which the connection ends, one number for each request."""
    changed: dict[str, bytes] = field(default_factory=dict)
    """Contents that are sent instead of the listed ones."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes that are listed instead of the real ones."""

    def commit(self, files: Mapping[str, bytes], *, branch: str = "main") -> str:
        """Add a commit to a branch; returns its hash."""
        commit = hashlib.sha1(repr(sorted(files.items())).encode() + str(len(self.commits)).encode()).hexdigest()
        self.commits[commit] = dict(files)
        self.branches[branch] = commit
        return commit

    def refuses(self, authorization: str | None, *, lists: bool) -> bool:
        """Decide whether a request is refused; `lists` for one about the list of files."""
        open_to_all = self.refusal is None or (lists and self.lists_to_all)
        return not open_to_all and authorization != f"Bearer {self.token}"


class Hub:
    """A hub with models by their id."""

    def __init__(self) -> None:
        self.repos: dict[str, HubRepo] = {}
        self.requests: list[str] = []
        """Method and path of each request."""
        self.authorizations: list[str | None] = []
        self.status: int | None = None
        """Status of every answer, for a server that fails."""
        self.answer: bytes | None = None
        """Body of every answer, for a server that is not a hub."""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                hub.requests.append(f"{self.command} {self.path}")
                hub.authorizations.append(self.headers.get("Authorization"))
                path = unquote(urlsplit(self.path).path)
                match = _API.fullmatch(path) or _FILE.fullmatch(path)
                if hub.status is not None or hub.answer is not None:
                    self.answer(hub.status or 200, hub.answer or b"")
                elif match is None or (repo := hub.repos.get(match["repo"])) is None:
                    self.refuse(401, "")
                elif repo.refuses(self.headers.get("Authorization"), lists=match.re is _API):
                    self.refuse(*(repo.refusal or (403, "")))
                elif match.re is _API:
                    self.list(match["repo"], repo, match["kind"], match["revision"] or "main")
                else:
                    self.send_file(repo, match["revision"], match["name"])

            def list(self, name: str, repo: HubRepo, kind: str | None, revision: str) -> None:
                commit = repo.branches.get(revision, revision)
                if commit not in repo.commits:
                    self.refuse(404, "RevisionNotFound")
                    return
                files = repo.commits[commit]
                if kind == "tree":
                    entries = [_tree_entry(path, content, repo.sizes.get(path)) for path, content in files.items()]
                    self.answer(200, json.dumps(entries).encode())
                    return
                siblings = [_sibling(path, content, repo.sizes.get(path)) for path, content in files.items()]
                self.answer(200, json.dumps({"id": name, "sha": commit, "siblings": siblings, "tags": []}).encode())

            def send_file(self, repo: HubRepo, revision: str, name: str) -> None:
                commit = repo.branches.get(revision, revision)
                content = repo.commits.get(commit, {}).get(name)
                if content is None:
                    self.refuse(404, "EntryNotFound", commit=commit)
                    return
                etag = _sha256(content) if len(content) >= _LARGE else _git_sha1(content)
                content = repo.changed.get(name, content)
                headers = {"ETag": f'"{etag}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
                start, status = 0, 200
                if (asked := self.headers.get("Range")) is not None and self.command == "GET":
                    start, status = int(asked.removeprefix("bytes=").split("-")[0]), 206
                    headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
                cuts = repo.cuts.get(name, []) if self.command == "GET" else []
                self.answer(status, content[start:], headers, most=cuts.pop(0) if cuts else None)

            def refuse(self, status: int, code: str, commit: str | None = None) -> None:
                headers = {"X-Error-Code": code, "X-Error-Message": "the server's own words"} if code else {}
                self.answer(status, b"", headers | ({"X-Repo-Commit": commit} if commit else {}))

            def answer(
                self, status: int, body: bytes, headers: Mapping[str, str] | None = None, most: int | None = None
            ) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "HEAD":
                    return
                self.wfile.write(body if most is None else body[:most])
                if most is not None:
                    self.wfile.flush()
                    self.close_connection = True

            def log_message(self, *arguments: object) -> None:
                """Nothing on the terminal."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._http.handle_error = lambda *where: None  # type: ignore[method-assign]
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def add(self, name: str, files: Mapping[str, bytes]) -> HubRepo:
        """Add a model with one commit on main."""
        self.repos[name] = HubRepo()
        self.repos[name].commit(files)
        return self.repos[name]

    def fetched(self) -> list[str]:
        """Names of the files whose contents were asked for."""
        return [path.rsplit("/", 1)[-1] for path in self.requests if path.startswith("GET") and "/resolve/" in path]

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


def hub_variables(hub: Hub, cache: Path) -> dict[str, str]:
    """Environment of a process that uses this hub."""
    return {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "0", "GRPO_HUB_OFFLINE": "0"}


@contextmanager
def hub_server(environment: pytest.MonkeyPatch, cache: Path) -> Iterator[Hub]:
    """Serve a hub, and let huggingface_hub, which reads its variables once, use it in this process."""
    hub = Hub()
    environment.setenv("GRPO_HUB_OFFLINE", "0")
    environment.delenv("HF_TOKEN", raising=False)
    environment.setenv("HF_TOKEN_PATH", str(cache / "no-token"))
    constants = "huggingface_hub.constants"
    environment.setattr(f"{constants}.ENDPOINT", hub.url)
    environment.setattr(
        f"{constants}.HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    environment.setattr(f"{constants}.HF_HUB_CACHE", str(cache))
    environment.setattr(f"{constants}.HF_TOKEN_PATH", str(cache / "no-token"))
    try:
        yield hub
    finally:
        hub.close()


def model_files(folder: Path) -> dict[str, bytes]:
    """Files of a model folder, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def _sibling(path: str, content: bytes, size: int | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"rfilename": path, "size": size or len(content), "blobId": _git_sha1(content)}
    if len(content) >= _LARGE:
        entry["lfs"] = {"sha256": _sha256(content), "size": size or len(content), "pointerSize": 100}
    return entry


def _tree_entry(path: str, content: bytes, size: int | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": size or len(content), "oid": _git_sha1(content)}
    if len(content) >= _LARGE:
        entry["lfs"] = {"oid": _sha256(content), "size": size or len(content), "pointerSize": 100}
    return entry


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
