"""A small Hugging Face hub on 127.0.0.1: the part of its protocol that huggingface_hub downloads by."""

import contextlib
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34
_API = re.compile(r"/api/models/(?P<repo>.+?)(?:/revision/(?P<revision>[^/]+))?")
_FILE = re.compile(r"/(?P<repo>.+?)/resolve/(?P<revision>[^/]+)/(?P<name>.+)")


class Hub(ThreadingHTTPServer):
    """Serves `repos`: repository -> commit -> file name -> content.

    `refs` are branches and tags. `sizes` overrides what is said of a file's size. `faults` maps a
    pattern of "METHOD /path" to a function (handler, content) -> whether it has answered.
    `requests` and `sent` (bytes of each file) are what came in and went out.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, dict[str, dict[str, bytes]]] = {}
        self.refs = {"main": COMMIT}
        self.sizes: dict[str, int] = {}
        self.faults: dict = {}
        self.requests: list[tuple[str, str, dict]] = []
        self.sent: dict[str, int] = {}
        self.released = threading.Event()  # ends what stalls
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exc):
        self.released.set()
        self.shutdown()
        self.server_close()

    def add(self, repo: str, files: dict[str, bytes], commit: str = COMMIT) -> None:
        self.repos.setdefault(repo, {})[commit] = files

    def fetched(self) -> list[str]:
        """The files whose content was asked for, in order."""
        paths = (path for method, path, _ in self.requests if method == "GET")
        return [match["name"] for path in paths if (match := _FILE.fullmatch(path))]


def refuse(status: int, code: str = ""):
    def fault(handler, content):
        handler.answer(status, b"", {"X-Error-Code": code} if code else {})
        return True

    return fault


def cut(length: int):
    """Break the connection off before byte `length` of the file."""

    def fault(handler, content):
        handler.answer_file(content, stop=length)
        return True

    return fault


def stall(handler, content):
    """Say nothing."""
    handler.server.released.wait(60)
    return True


def replace(change):
    def fault(handler, content):
        handler.answer_file(change(content))
        return True

    return fault


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = urlsplit(self.path).path
        self.server.requests.append((self.command, path, dict(self.headers)))
        match = _API.fullmatch(path) or _FILE.fullmatch(path)
        if match is None:
            return self.answer(404, b"")
        files, self.commit = self.find(match)
        if files is None:
            return None
        if "name" not in match.groupdict():
            content = json.dumps(self.describe(match["repo"], files)).encode()
            return self.faulty(path, content) or self.answer(200, content)
        self.name, self.files = match["name"], files
        content = files.get(self.name)
        if self.faulty(path, content):
            return None
        if content is None:
            return self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        return self.answer_file(content)

    do_HEAD = do_GET

    def find(self, match):
        """The files and the commit of the path's repository and revision, else a 404."""
        commits = self.server.repos.get(match["repo"])
        revision = unquote(match["revision"] or "main")
        commit = self.server.refs.get(revision, revision)
        if commits is None:
            self.answer(401, b"Invalid username or password.", {"X-Error-Code": "RepoNotFound"})
        elif commit not in commits:
            self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        else:
            return commits[commit], commit
        return None, commit

    def faulty(self, path: str, content) -> bool:
        for pattern, fault in self.server.faults.items():
            if re.search(pattern, f"{self.command} {path}"):
                return fault(self, content)
        return False

    def describe(self, repo: str, files: dict[str, bytes]) -> dict:
        siblings = []
        for name, content in files.items():
            size = self.server.sizes.get(name, len(content))
            sibling = {"rfilename": name, "size": size, "blobId": etag(name, content)}
            if large(name):
                sibling["lfs"] = {"sha256": etag(name, content), "size": size, "pointerSize": 134}
            siblings.append(sibling)
        return {"id": repo, "sha": self.commit, "siblings": siblings}

    def answer(self, status: int, body: bytes, headers: dict | None = None) -> None:
        self.send_response(status)
        for key, value in ({"Content-Length": len(body)} | (headers or {})).items():
            self.send_header(key, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def answer_file(self, content: bytes, stop: int | None = None) -> None:
        """The file from the range's start on, or up to `stop`, where the connection breaks off."""
        original = self.files[self.name]
        start, status, headers = 0, 200, {"X-Repo-Commit": self.commit}
        headers["ETag"] = f'"{etag(self.name, original)}"'
        headers["X-Linked-Size"] = len(original)
        headers["X-Linked-Etag"] = headers["ETag"]
        if match := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
            start, status = int(match[1]), 206
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self.send_response(status)
        headers["Content-Length"] = len(content) - start
        for key, value in headers.items():
            self.send_header(key, str(value))
        self.end_headers()
        if self.command == "GET":
            body = content[start:stop]
            self.wfile.write(body)
            self.wfile.flush()
            self.server.sent[self.name] = self.server.sent.get(self.name, 0) + len(body)
        if stop is not None:
            self.close_connection = True

    def log_message(self, *args):
        pass

    def handle(self):
        with contextlib.suppress(ConnectionError):  # a client that has seen enough
            super().handle()


def etag(name: str, content: bytes) -> str:
    return (hashlib.sha256 if large(name) else hashlib.sha1)(content).hexdigest()


def large(name: str) -> bool:
    """Whether the hub keeps the file apart from git, under its SHA-256."""
    return not name.endswith((".json", ".md"))
