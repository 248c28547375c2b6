"""A server on this machine that speaks as much of the hub's HTTP API as reading and writing a model take."""

import base64
import hashlib
import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import prod
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants

from archetype.io.weight_files import INDEX, SIZE_BYTES

CONNECT = socket.socket.connect  # tests of everything else refuse to
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "I8": 1, "F8_E4M3": 1, "BOOL": 1}
Models = dict[str, dict[str, Path]]  # folders by owner/name and revision
API = re.compile(r"/api/models/([^/]+/[^/]+)/(?:revision|tree)/([^/]+)")
MAIN = re.compile(r"/api/models/([^/]+/[^/]+)()")
FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
WRITE = re.compile(r"/api/models/([^/]+/[^/]+)/(branch|preupload|commit)/([^/]+)")
TOKEN = "hf_may_write"


class Hub(ThreadingHTTPServer):
    """Models by name and revision.

    Attributes:
        models: the folder of each revision.
        sent: bytes of files that were sent.
        broken: whether files are answered with an error of the server.
        store: where the files of commits are written.
        private: repositories that only their owner may read.
        asked: every request that writes, with what it sends.
    """

    daemon_threads = True

    def __init__(self, models: Models, store: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.models, self.sent, self.broken, self.store = models, 0, False, store
        self.private: set[str] = set()
        self.asked: list[tuple[str, Any]] = []

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.server_address[1]}"


def commit_of(folder: Path) -> str:
    """The commit of a revision: 40 hexadecimal digits that its folder decides."""
    return hashlib.sha1(str(folder).encode()).hexdigest()


class _Answer(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        """Answer with facts of a model, a list of its files, or bytes of a file."""
        path = unquote(urlsplit(self.path).path)
        if path == "/api/whoami-v2":
            return self._say({"name": "someone", "type": "user"}) if self._may_write() else self._refuse_token()
        match = API.fullmatch(path) or MAIN.fullmatch(path) or FILE.fullmatch(path)
        if match is None or (revisions := self.server.models.get(match[1])) is None:
            return self._refuse("RepoNotFound")
        by_name = revisions | {commit_of(folder): folder for folder in revisions.values()}
        if (folder := by_name.get(match[2] or "main")) is None:
            return self._refuse("RevisionNotFound")
        if path.startswith("/api/"):
            files = sorted(file for file in folder.iterdir() if file.is_file())
            return self._say(_tree(files) if "/tree/" in path else self._facts(match[1], folder, files))
        if not (file := folder / match[3]).is_file():
            return self._refuse("EntryNotFound")
        if self.server.broken:
            return self._send(HTTPStatus.FORBIDDEN, b"not now", {})
        return self._send_file(file, commit_of(folder))

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Make a repository or a branch, or write the files of a commit, which all stand in the request itself."""
        path, body = unquote(urlsplit(self.path).path), self.rfile.read(int(self.headers["Content-Length"]))
        lines = [json.loads(line) for line in body.splitlines()]
        if not self._may_write():
            return self._refuse_token()
        if path == "/api/validate-yaml":
            return self._say({"errors": [], "warnings": []})
        self.server.asked.append((path, lines))
        if path == "/api/repos/create":
            return self._create(lines[0])
        match = WRITE.fullmatch(path)
        if match is None or (revisions := self.server.models.get(match[1])) is None:
            return self._refuse("RepoNotFound")
        if match[2] == "branch":
            revisions.setdefault(match[3], self._folder(match[1], match[3]))
            return self._say({})
        if match[3] not in revisions:
            return self._refuse("RevisionNotFound")
        if match[2] == "preupload":
            names = [file["path"] for file in lines[0]["files"]]
            return self._say({"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]})
        for line in lines:
            file = revisions[match[3]] / str(line["value"].get("path"))
            if line["key"] == "file":
                file.write_bytes(base64.b64decode(line["value"]["content"]))
            elif line["key"] == "deletedFile":
                file.unlink()
        return self._say(
            {"success": True, "commitOid": "0" * 40, "commitUrl": f"{self.server.url}/{match[1]}/commit/0"}
        )

    def _may_write(self) -> bool:
        return bool(self.headers.get("Authorization") == f"Bearer {TOKEN}")

    def _refuse_token(self) -> None:
        self._send(HTTPStatus.UNAUTHORIZED, b'{"error": "Invalid user token."}', {"Content-Type": "application/json"})

    def _create(self, asked: dict[str, Any]) -> None:
        name = f"{asked.get('organization', 'someone')}/{asked['name']}"
        if name.startswith("forbidden/"):
            return self._send(HTTPStatus.FORBIDDEN, b'{"error": "You are not of it."}', {})
        if name in self.server.models:
            return self._send(HTTPStatus.CONFLICT, json.dumps({"url": f"{self.server.url}/{name}"}).encode(), {})
        self.server.models[name] = {"main": self._folder(name, "main")}
        self.server.private |= {name} if "private" in (asked.get("visibility"), *asked) else set()
        return self._say({"url": f"{self.server.url}/{name}"})

    def _folder(self, name: str, revision: str) -> Path:
        folder = self.server.store / name.replace("/", "--") / revision
        folder.mkdir(parents=True)
        return folder

    def _facts(self, name: str, folder: Path, files: list[Path]) -> dict[str, Any]:
        siblings = [{"rfilename": file.name} for file in files]
        private = name in self.server.private
        return {"_id": "0" * 24, "id": name, "sha": commit_of(folder), "private": private, "siblings": siblings}

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def _refuse(self, code: str) -> None:
        self._send(HTTPStatus.NOT_FOUND, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def _say(self, data: Any) -> None:
        self._send(HTTPStatus.OK, json.dumps(data).encode(), {"Content-Type": "application/json"})

    def _send_file(self, file: Path, commit: str) -> None:
        data, status = file.read_bytes(), HTTPStatus.OK
        headers = {"ETag": f'"{_blob(file)}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if part := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(part[1]), min(int(part[2] or len(data)), len(data) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            data, status = data[first : last + 1], HTTPStatus.PARTIAL_CONTENT
        self.server.sent += len(data) * (self.command == "GET")
        self._send(status, data, headers)

    def _send(self, status: HTTPStatus, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(data))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _tree(files: list[Path]) -> list[dict[str, Any]]:
    return [{"type": "file", "path": file.name, "size": file.stat().st_size, "oid": _blob(file)} for file in files]


def _blob(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()


@contextmanager
def serving(models: Models, cache: Path, patch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Models where huggingface_hub looks for them: the only connections that a test opens, to this machine."""
    hub = Hub(models, cache / "written")

    def to_hub(self: socket.socket, address: Any) -> None:
        if address != hub.server_address:
            raise AssertionError(f"a test tried to connect to {address}")
        CONNECT(self, address)

    patch.setattr(socket.socket, "connect", to_hub)
    patch.setattr(constants, "ENDPOINT", hub.url)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    patch.setattr(constants, "HF_HUB_CACHE", str(cache))
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    thread = Thread(target=hub.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()


def write_headers(to: Path, shards: dict[str, dict[str, Any]]) -> None:
    """Write safetensors files that end with their header, and the index of several.

    Args:
        to: an existing folder.
        shards: of each file its tensors with `dtype` and `shape`, by name.
    """
    for file, tensors in shards.items():
        entries, end = {}, 0
        for name, tensor in tensors.items():
            size = BYTES[tensor["dtype"]] * prod(tensor["shape"])
            entries[name] = {**tensor, "data_offsets": [end, end + size]}
            end += size
        data = json.dumps(entries).encode()
        (to / file).write_bytes(len(data).to_bytes(SIZE_BYTES, "little") + data)
    if len(shards) > 1:
        where = {name: file for file, tensors in shards.items() for name in tensors}
        (to / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))


def copy_headers(folder: Path, to: Path) -> Path:
    """Copy a folder with no more of its safetensors files than their headers."""
    to.mkdir(parents=True)
    for file in folder.iterdir():
        if file.suffix == ".safetensors":
            size = int.from_bytes(file.read_bytes()[:SIZE_BYTES], "little")
            (to / file.name).write_bytes(file.read_bytes()[: SIZE_BYTES + size])
        elif file.is_file():
            (to / file.name).write_bytes(file.read_bytes())
    return to
