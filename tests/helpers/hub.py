"""A server on this machine that speaks as much of the hub's HTTP API as reading a model takes."""

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


class Hub(ThreadingHTTPServer):
    """Models by name and revision.

    Attributes:
        models: the folder of each revision.
        sent: bytes of files that were sent.
        broken: whether files are answered with an error of the server.
    """

    daemon_threads = True

    def __init__(self, models: Models) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.models, self.sent, self.broken = models, 0, False

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
        match = API.fullmatch(path) or MAIN.fullmatch(path) or FILE.fullmatch(path)
        if match is None or (revisions := self.server.models.get(match[1])) is None:
            return self._refuse("RepoNotFound")
        by_name = revisions | {commit_of(folder): folder for folder in revisions.values()}
        if (folder := by_name.get(match[2] or "main")) is None:
            return self._refuse("RevisionNotFound")
        if path.startswith("/api/"):
            files = sorted(file for file in folder.iterdir() if file.is_file())
            return self._say(_tree(files) if "/tree/" in path else _facts(match[1], folder, files))
        if not (file := folder / match[3]).is_file():
            return self._refuse("EntryNotFound")
        if self.server.broken:
            return self._send(HTTPStatus.FORBIDDEN, b"not now", {})
        return self._send_file(file, commit_of(folder))

    do_HEAD = do_GET

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
        if self.command == "GET":
            self.wfile.write(data)


def _facts(name: str, folder: Path, files: list[Path]) -> dict[str, Any]:
    siblings = [{"rfilename": file.name} for file in files]
    return {"_id": "0" * 24, "id": name, "sha": commit_of(folder), "private": False, "siblings": siblings}


def _tree(files: list[Path]) -> list[dict[str, Any]]:
    return [{"type": "file", "path": file.name, "size": file.stat().st_size, "oid": _blob(file)} for file in files]


def _blob(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()


@contextmanager
def serving(models: Models, cache: Path, patch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Models where huggingface_hub looks for them: the only connections that a test opens, to this machine."""
    hub = Hub(models)

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
