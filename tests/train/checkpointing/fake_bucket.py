"""A server of Google Cloud Storage's JSON API on this machine, for one bucket.

It keeps to what object storage is: objects are written whole under a new generation,
conditions on generations hold, and there are no folders, no appends and no renames.
"""

import dataclasses
import itertools
import json
import re
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

BUCKET = "bucket"


class FakeBucket:
    """Objects by name, each with its generation, behind a local address.

    Attributes:
        url: for STORAGE_EMULATOR_HOST and TENSORSTORE_GCS_HTTP_URL.
        objects: content and generation by name.
        changes: method and name of every change that was asked for.
        refuse: of (method, name) what this says is refused, as without a permission.
    """

    refuse: Callable[[str, str], bool]

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.changes: list[tuple[str, str]] = []
        self.refuse_nothing()
        self.uploads: dict[str, tuple[str, bytes]] = {}
        self.lock = threading.Lock()
        self.numbers = itertools.count(1)
        self._server = _Server(("localhost", 0), _handler(self))
        self.url = f"http://localhost:{self._server.server_port}"

    def __enter__(self) -> "FakeBucket":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def names(self, folder: str) -> set[str]:
        """The objects below a folder, named from there."""
        found = [name for name in list(self.objects) if name.startswith(folder + "/")]
        return {name.removeprefix(folder + "/") for name in found}

    def generation(self, name: str) -> int:
        """0 where there is no such object."""
        return self.objects.get(name, (b"", 0))[1]

    def refuse_like(self, method: str, pattern: str) -> None:
        """From now on refuses a method on names that the pattern is found in."""
        found = re.compile(pattern).search
        self.refuse = lambda m, name: m == method and found(name) is not None

    def refuse_nothing(self) -> None:
        self.refuse = lambda method, name: False

    def put(self, name: str, content: bytes) -> dict[str, Any]:
        self.objects[name] = (content, next(self.numbers))
        return self.described(name)

    def described(self, name: str) -> dict[str, Any]:
        content, generation = self.objects[name]
        return {
            "kind": "storage#object",
            "bucket": BUCKET,
            "name": name,
            "id": f"{BUCKET}/{name}/{generation}",
            "generation": str(generation),
            "metageneration": "1",
            "size": str(len(content)),
            "contentType": "application/octet-stream",
            "updated": "2020-01-01T00:00:00.000Z",
            "timeCreated": "2020-01-01T00:00:00.000Z",
        }


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # clients come many at a time

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a killed client's
            super().handle_error(request, client_address)


@dataclasses.dataclass
class _Request:
    method: str
    path: str
    query: dict[str, str]
    body: bytes
    headers: Any


@dataclasses.dataclass
class _Answer:
    content: Any
    status: int = 200
    headers: dict[str, str] = dataclasses.field(default_factory=dict)


class _Refusal(Exception):  # noqa: N818
    """Ends a request with an HTTP status."""


def _handler(bucket: FakeBucket) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or each answer waits for the client's delay

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = urlsplit(self.path)
            query = {key: value[0] for key, value in parse_qs(parts.query).items()}
            asked = _Request(self.command, parts.path, query, body, self.headers)
            try:
                with bucket.lock:
                    answer = _served(bucket, asked)
            except _Refusal as error:
                (status,) = error.args
                error = {"code": status, "message": f"HTTP {status}"}
                answer = _Answer({"error": error} if status != 304 else b"", status)
            content = answer.content
            if not isinstance(content, bytes):
                content = json.dumps(content).encode()
                answer.headers["Content-Type"] = "application/json"
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


_PATH = re.compile(
    r"(/upload|/download)?/storage/v1/b/(?P<bucket>[^/]+)(?P<all>/o)?/?(?P<name>.*)"
)


def _served(bucket: FakeBucket, asked: _Request) -> _Answer:
    path = _PATH.fullmatch(asked.path)
    if path is None:
        raise _Refusal(501)
    if path["bucket"] != BUCKET:
        raise _Refusal(404)
    if not path["all"]:
        _check(bucket, asked.method, "", {})
        return _Answer({"kind": "storage#bucket", "id": BUCKET, "name": BUCKET})
    if path[1] == "/upload":
        return _uploaded(bucket, asked)
    if not path["name"]:
        return _listed(bucket, asked.query)
    if "/rewriteTo/" in path["name"]:
        return _copied(bucket, path["name"])
    if "/" in path["name"]:  # moveTo, compose, ...
        raise _Refusal(501)
    name = unquote(path["name"])
    _check(bucket, asked.method, name, asked.query)
    if name not in bucket.objects:
        raise _Refusal(404)
    if asked.method == "DELETE":
        del bucket.objects[name]
        return _Answer(b"", 204)
    if asked.query.get("alt") == "media" or path[1] == "/download":
        return _content(bucket, name, asked.headers.get("Range", ""))
    return _Answer(bucket.described(name))


def _check(bucket: FakeBucket, method: str, name: str, query: dict[str, str]) -> None:
    if method != "GET":
        bucket.changes.append((method, name))
    if bucket.refuse(method, name):
        raise _Refusal(403)
    generation = str(bucket.generation(name))
    if query.get("ifGenerationMatch", generation) != generation:
        raise _Refusal(412)
    if query.get("ifGenerationNotMatch") == generation:
        raise _Refusal(304)


def _uploaded(bucket: FakeBucket, asked: _Request) -> _Answer:
    if number := asked.query.get("upload_id"):
        return _continued(bucket, asked, number)
    kind, name, content = asked.query["uploadType"], asked.query.get("name"), asked.body
    if kind == "multipart":
        boundary = asked.body.split(b"\n", 1)[0].strip()
        _, described, content, _ = asked.body.split(boundary)
        name = json.loads(re.split(rb"\r?\n\r?\n", described, maxsplit=1)[1])["name"]
        content = re.split(rb"\r?\n\r?\n", content, maxsplit=1)[1]
        content = content.removesuffix(b"\n").removesuffix(b"\r")
    assert name is not None
    _check(bucket, "POST", name, asked.query)
    if kind == "resumable":
        number = str(next(bucket.numbers))
        bucket.uploads[number] = (name, b"")
        place = f"{bucket.url}{asked.path}?uploadType=resumable&upload_id={number}"
        return _Answer(b"", 200, {"Location": place})
    return _Answer(bucket.put(name, content))


def _continued(bucket: FakeBucket, asked: _Request, number: str) -> _Answer:
    """A further part of a resumable upload; the object exists from the last one on."""
    name, content = bucket.uploads.pop(number)
    content += asked.body
    total = asked.headers["Content-Range"].split("/")[1]
    if total == str(len(content)):
        return _Answer(bucket.put(name, content))
    bucket.uploads[number] = (name, content)
    return _Answer(b"", 308, {"Range": f"bytes=0-{len(content) - 1}"})


def _copied(bucket: FakeBucket, names: str) -> _Answer:
    source, target = map(unquote, names.split(f"/rewriteTo/b/{BUCKET}/o/"))
    _check(bucket, "POST", target, {})
    if source not in bucket.objects:
        raise _Refusal(404)
    described = bucket.put(target, bucket.objects[source][0])
    return _Answer({"done": True, "resource": described})


def _listed(bucket: FakeBucket, query: dict[str, str]) -> _Answer:
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
    items, prefixes = [], set()
    for name in sorted(bucket.objects):
        rest = name.removeprefix(prefix)
        if not name.startswith(prefix):
            continue
        if delimiter and delimiter in rest:
            prefixes.add(prefix + rest.split(delimiter)[0] + delimiter)
        else:
            items.append(bucket.described(name))
    found = {"items": items, "prefixes": sorted(prefixes)}
    return _Answer({"kind": "storage#objects", **found})


def _content(bucket: FakeBucket, name: str, wanted: str) -> _Answer:
    content, generation = bucket.objects[name]
    headers = {"x-goog-generation": str(generation)}
    match = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted)
    if match is None:
        return _Answer(content, 200, headers)
    start, stop = int(match[1]), int(match[2] or len(content) - 1) + 1
    if start >= len(content):
        raise _Refusal(416)
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
    return _Answer(content[start:stop], 206, headers)
