"""Whom the server answers, and how much it takes."""

import fnmatch
import hmac
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

LOCAL = ("127.0.0.1", "localhost", "[::1]", "host.docker.internal")  # the last: in a container


def in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def allowed_hosts(host: str, address: str, more: Sequence[str] = ()) -> Sequence[str]:
    """The host names that requests may use. On loopback not all, or foreign pages could name it theirs (DNS rebinding)."""
    if not more and not ipaddress.ip_address(address).is_loopback:
        return ("*",)
    names = (*LOCAL, host, in_url(address), *more)
    return sorted({name.lower() for name in names})


def _is_among(name: str, names: Sequence[str]) -> bool:
    """Whether a name is one of these, or fits one that is a pattern."""
    return name in names or any(fnmatch.fnmatchcase(name, each) for each in names)


@dataclass(frozen=True)
class Limits:
    """The most that a request may ask for or send."""

    prompt_tokens: int
    answer_tokens: int
    seconds: int  # of a sound
    upload: int  # bytes of a sound or a document
    upload_seconds: int  # in which these must arrive


@dataclass(frozen=True)
class Gate:
    """The checks that requests pass first. Each raises HTTPException."""

    name: str  # the model's
    names: Sequence[str] = ()  # by which requests may also call it, or patterns of them
    api_key: str | None = None
    hosts: Sequence[str] = ()  # names by which clients may address the server; *: any
    origins: Sequence[str] = ()  # whose pages may send requests, or patterns of them; *: any

    def check_host(self, request: HTTPConnection) -> None:
        """Refuse a request to another host: a web page may let its own name resolve to this machine."""
        host = re.sub(r":\d+$", "", request.headers.get("host", "").lower())
        if not {host, "*"} & {*self.hosts}:
            message = f"this server answers only to {', '.join(self.hosts)} (see --allowed-hosts)"
            raise HTTPException(400, message)

    @property
    def cors(self) -> dict[str, Any]:
        patterns = "|".join(map(fnmatch.translate, self.origins))
        anything = dict(allow_methods=["*"], allow_headers=["*"])
        return dict(allow_origins=self.origins, allow_origin_regex=patterns, **anything)

    def check_origin(self, request: HTTPConnection) -> None:
        """Refuse another web page's form or WebSocket, which browsers send without asking first."""
        origin = request.headers.get("origin")
        if not origin or origin.partition("://")[2] == request.headers.get("host"):
            return
        if not _is_among(origin, self.origins):
            raise HTTPException(403, "other web pages may not send requests; see --allowed-origins")

    def authorize(
        self, request: HTTPConnection, scheme: str = "Bearer", key: object = "", status: int = 401
    ) -> None:
        """Refuse a request unless its header, or the key that it gives elsewhere, is the server's."""
        expected = f"{scheme} {self.api_key}".encode()
        sent = request.headers.get("authorization", "").encode("latin-1")  # the bytes as sent
        keys = sent, f"{scheme} {key}".encode()
        if self.api_key and not any(hmac.compare_digest(each, expected) for each in keys):
            message = f"the API key is missing or wrong: send Authorization: {scheme} KEY"
            raise HTTPException(status, message)

    def check_model(self, name: str | None) -> None:
        """Refuse another model than the one that is served. None: any."""
        if name and not _is_among(name, (self.name, *self.names)):
            raise HTTPException(404, f"this server has only the model {self.name}")
