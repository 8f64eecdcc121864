"""A server as a user starts it, requests of all kinds for it, and what each is to answer: its text alone."""

import json
import random
import re
import subprocess
import sys
import threading
import time
import urllib.request
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from apps.serving.bodies import parse
from apps.serving.requests import Completion
from demo.training.tasks import SHORT_KINDS, held_out_example
from helpers.programs import ROOT
from speculative.step.options import Options

SETTINGS: list[dict[str, Any]] = [
    {},
    {"num_draft": 0},
    {"num_draft": 3},
    {"repetition_penalty": 1.3},
    {"no_repeat_ngram_size": 3, "min_tokens": 5},
    {"stop": ["e", "und"]},
    {"max_tokens": 4, "logit_bias": {"5": -1.5, "20": 2}},
    {"temperature": 0.7},
    {"temperature": 1.2, "top_p": 0.9, "num_draft": 2},
    {"temperature": 1, "top_k": 20, "min_p": 0.02, "n": 2},
    {"temperature": 0.9, "presence_penalty": 0.5, "frequency_penalty": 0.7},
    {"temperature": 1, "stop": "a", "max_tokens": 12, "logprobs": 2},
]
WATCHED = Path(__file__).parent / "watched_server.py"
LIGHT = ("uvicorn", "uvloop", "httptools", "h11", "websockets", "wsproto", "anyio", "starlette")


class Server:
    """serve.py on a free port, on the embedded pair unless the arguments name another model."""

    def __init__(self, cwd: Path, *arguments: str, program: Path = ROOT / "serve.py"):
        command = [sys.executable, str(program), "--port", "0", *arguments]
        self.process = subprocess.Popen(command, cwd=cwd, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr
        self.log: list[str] = []
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"serving \S+ at http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                break
        else:
            raise AssertionError("".join(self.log))
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        finally:
            self.process.kill()

    def post(self, fields: Any, path: str = "/v1/completions", **headers) -> tuple[int, Any]:
        """The status and the JSON that answer a request; fields: its body, or what is to be JSON."""
        body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("POST", path, body, {"content-type": "application/json", **headers})
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        return response.status, json.loads(text) if text.startswith(b"{") else text.decode()

    def get(self, path: str) -> str:
        request = urllib.request.Request(self.url + path, headers={"authorization": "Bearer key"})
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.read().decode()

    def metric(self, name: str) -> float:
        """The value of a line of /metrics; 0 where there is none yet."""
        lines = dict(line.rsplit(" ", 1) for line in self.get("/metrics").splitlines())
        return float(lines.get(f"speculative_{name}", 0))

    def until(self, name: str, value: float) -> None:
        """Until a line of /metrics has this value."""
        end = time.monotonic() + 120
        while (found := self.metric(name)) != value:
            assert time.monotonic() < end, f"{name} is {found}, not {value}"
            time.sleep(0.02)


def form(fields: Any, file: bytes | None = b"x", name: str = "file", **headers):
    """The body and the headers of a form. fields: a dictionary, or pairs"""
    pairs = fields.items() if isinstance(fields, dict) else fields
    parts = [(f'name="{field}"', value.encode()) for field, value in pairs]
    parts += [] if file is None else [(f'name="{name}"; filename="{name}"', file)]
    body = b"".join(
        b"--B\r\ncontent-disposition: form-data; %s\r\n\r\n%s\r\n" % (about.encode(), data)
        for about, data in parts
    )
    return body + b"--B--\r\n", {"content-type": "multipart/form-data; boundary=B", **headers}


def heavy(server: Server) -> list[str]:
    """What a watched server has imported or opened on its event loop, besides the parts of the server itself."""
    lines = [line for line in server.log if line.startswith("on the event loop")]
    return [line for line in lines if not any(name in line for name in LIGHT)]


def openai_client(server: Server, key: str = "none"):
    """OpenAI's own client of a server."""
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def mixed(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Bodies of completions of mixed settings."""
    chance = random.Random(seed)
    return [
        {
            "prompt": held_out_example(chance, chance.choice(SHORT_KINDS)).prompt,
            "seed": chance.randrange(10**6),
            **SETTINGS[i % len(SETTINGS)],
        }
        for i in range(count)
    ]


def alone(decoder, fields: dict[str, Any]) -> list[tuple[str, str]]:
    """The texts that a request asks for, and what ends them, decoded with nothing beside them."""
    asked = parse(json.dumps(fields).encode(), Completion)
    responses = decoder.batch_generate(asked.prompt, batch_size=1, **vars(asked.options(Options())))
    return [(response.text, response.finish_reason) for response in responses]
