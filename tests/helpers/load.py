"""Texts a second at 1, 8 and 32 clients, and one by one; from the repository's root:

PYTHONPATH=.:tests python -m helpers.load [requests]
"""

import json
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

from convert import convert
from decoder import SpeculativeDecoder, load
from helpers.programs import DEMO
from helpers.serving import Server, alone, mixed


def first_token(server: Server, fields: dict) -> tuple[float, int]:
    """Seconds until a stream's first token, and how many tokens it has."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=600)
    body = json.dumps({**fields, "stream": True, "stream_options": {"include_usage": True}})
    began, first, tokens = time.perf_counter(), 0.0, 0
    connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
    for line in connection.getresponse():
        first = first or time.perf_counter() - began
        if b'"usage": {' in line:
            tokens = json.loads(line.removeprefix(b"data: "))["usage"]["completion_tokens"]
    connection.close()
    assert tokens
    return first, tokens


def busy(server: Server) -> float:
    """Seconds of processors that the server has used: what else runs on the machine counts for less in them."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_speed(decoder: SpeculativeDecoder, folder: Path, requests: int) -> None:
    for num_draft in (0, 4):
        plain = [
            {key: fields[key] for key in ("prompt", "seed")} | {"num_draft": num_draft}
            for fields in mixed(requests, seed=3)
        ]
        for fields in plain[:8]:
            alone(decoder, fields)
        began, used = time.perf_counter(), time.process_time()
        for fields in plain:
            alone(decoder, fields)
        seconds, used = time.perf_counter() - began, time.process_time() - used
        print(
            f"num_draft {num_draft}: one by one {requests / seconds:.1f} texts/s, "
            f"{requests / used:.1f} per second of a core"
        )
        with Server(folder, "--batch-size", "32") as server:
            for clients in (1, 8, 32):
                with ThreadPoolExecutor(clients) as pool:
                    list(pool.map(lambda f: first_token(server, f), plain[:64]))
                    began, used = time.perf_counter(), busy(server)
                    found = list(pool.map(lambda f: first_token(server, f), plain))
                    seconds, used = time.perf_counter() - began, busy(server) - used
                firsts = sorted(first for first, _ in found)
                print(
                    f"  {clients} clients: {requests / seconds:.1f} texts/s, "
                    f"{requests / used:.1f} per second of a core, "
                    f"{sum(n for _, n in found) / seconds:.0f} tokens/s, first token "
                    f"{1e3 * statistics.median(firsts):.0f} ms, 95 %: "
                    f"{1e3 * firsts[int(0.95 * len(firsts))]:.0f} ms"
                )


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, pair = Path(name), []
        for role in ("target", "draft"):
            convert(str(DEMO / role), folder / "mlx_models" / f"demo-{role}", dtype="float32")
            pair.append(load(folder / "mlx_models" / f"demo-{role}"))
        (target, tokenizer), (draft, _) = pair
        requests = int(sys.argv[1]) if sys.argv[1:] else 96
        measure_speed(SpeculativeDecoder(target, tokenizer, draft), folder, requests)


if __name__ == "__main__":
    main()
