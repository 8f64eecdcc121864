"""A server under load, from the repository's root:

PYTHONPATH=.:tests python -m helpers.load texts    500 requests of mixed settings, 32 at once: each its own text
PYTHONPATH=.:tests python -m helpers.load speed    texts a second at 1, 8 and 32 clients, and one by one
PYTHONPATH=.:tests python -m helpers.load memory   what 5,000 requests leave behind
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

from convert import convert
from decoder import SpeculativeDecoder, load
from helpers.programs import DEMO
from helpers.serving import Server, alone, mixed, texts


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


def check_texts(decoder: SpeculativeDecoder, folder: Path, requests: int, clients: int) -> None:
    asked = mixed(requests, seed=2)
    with Server(folder, "--batch-size", "32") as server, ThreadPoolExecutor(clients) as pool:
        began = time.perf_counter()
        answers = list(pool.map(server.post, asked))
        seconds = time.perf_counter() - began
    expected = [alone(decoder, fields) for fields in asked]
    lost = sum(status != 200 for status, _ in answers)
    other = sum(
        texts(answer) != of_one for (_, answer), of_one in zip(answers, expected, strict=True)
    )
    print(f"{requests} requests, {clients} at once, {seconds:.1f} s: {lost} lost, {other} differ")


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


def measure_memory(folder: Path, requests: int, clients: int) -> None:
    with Server(folder, "--batch-size", "32") as server, ThreadPoolExecutor(clients) as pool:
        status = Path(f"/proc/{server.process.pid}/status")
        for done in range(0, requests, 500):
            answers = list(pool.map(server.post, mixed(500, seed=done)))
            assert all(code == 200 for code, _ in answers)
            rss = next(line for line in status.read_text().splitlines() if "VmRSS" in line)
            print(f"{done + 500} requests: {int(rss.split()[1]) / 1024:.0f} MB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["texts", "speed", "memory"])
    parser.add_argument("--requests", type=int)
    parser.add_argument("--clients", type=int, default=32)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, pair = Path(name), []
        for role in ("target", "draft"):
            convert(str(DEMO / role), folder / "mlx_models" / f"demo-{role}", dtype="float32")
            pair.append(load(folder / "mlx_models" / f"demo-{role}"))
        (target, tokenizer), (draft, _) = pair
        decoder = SpeculativeDecoder(target, tokenizer, draft)
        if args.what == "texts":
            check_texts(decoder, folder, args.requests or 500, args.clients)
        elif args.what == "speed":
            measure_speed(decoder, folder, args.requests or 256)
        else:
            measure_memory(folder, args.requests or 5000, args.clients)


if __name__ == "__main__":
    main()
