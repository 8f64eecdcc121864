"""Texts a second at 1, 8 and 32 clients, and one by one; from the repository's root:

PYTHONPATH=.:tests python -m helpers.load [requests]
"""

import json
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

from decoder import SpeculativeDecoder, load
from demo.pair import demo_model
from helpers.serving import Server, alone, mixed


def first_token(server: Server, fields: dict) -> float:
    """Seconds until a stream's first token."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=600)
    body = json.dumps({**fields, "stream": True})
    began, first = time.perf_counter(), 0.0
    connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
    for _ in connection.getresponse():
        first = first or time.perf_counter() - began
    connection.close()
    return first


def main() -> None:
    requests = int(sys.argv[1]) if sys.argv[1:] else 96
    target, tokenizer = load(demo_model("target"))
    decoder = SpeculativeDecoder(target, tokenizer, load(demo_model("draft"))[0])
    asked = [{key: fields[key] for key in ("prompt", "seed")} for fields in mixed(requests, seed=3)]
    for num_draft in (0, 4):
        plain = [fields | {"num_draft": num_draft} for fields in asked]
        for fields in plain[:8]:
            alone(decoder, fields)
        began = time.perf_counter()
        for fields in plain:
            alone(decoder, fields)
        speed = requests / (time.perf_counter() - began)
        print(f"num_draft {num_draft}: one by one {speed:.1f} texts/s")
        with Server(Path.cwd(), "--batch-size", "32") as server:
            for clients in (1, 8, 32):
                with ThreadPoolExecutor(clients) as pool:
                    ask = partial(first_token, server)
                    list(pool.map(ask, plain[:64]))
                    began = time.perf_counter()
                    firsts = sorted(pool.map(ask, plain))
                    speed = requests / (time.perf_counter() - began)
                middle, late = statistics.median(firsts), firsts[int(0.95 * len(firsts))]
                print(f"  {clients} clients: {speed:.1f} texts/s, first token", end=" ")
                print(f"{1e3 * middle:.0f} ms, 95 %: {1e3 * late:.0f} ms")


if __name__ == "__main__":
    main()
