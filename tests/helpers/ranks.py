"""Starting the ranks of a split model: real processes on this machine, by mlx.launch or by hand."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

LIMIT = 300  # seconds; whatever takes longer hangs, on a busy machine as well


def free_ports(count: int) -> int:
    """The first of `count` ports in a row that nobody listens on."""
    while True:
        first = random.SystemRandom().randrange(20_000, 32_000)
        with suppress(OSError):
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return first


@contextmanager
def process(command: list, **kwargs):
    """A process; it and all that it started are gone afterwards."""
    pipes = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    started = subprocess.Popen(command, text=True, start_new_session=True, **pipes | kwargs)
    try:
        yield started
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.communicate()


def launched(ranks: int, *arguments, cwd: Path):
    """mlx.launch with a Python command, which it starts as so many ranks."""
    launcher = "from mlx._distributed_utils.launch import main; main()"
    options = ["-n", ranks, "--backend", "ring", "--starting-port", free_ports(ranks)]
    command = ["-c", launcher, *options, "--python", sys.executable, "--", *arguments]
    return process([sys.executable, *map(str, command)], cwd=cwd)


def launch(ranks: int, *arguments, cwd: Path) -> tuple[str, str]:
    """stdout and stderr of a Python command that mlx.launch starts as so many ranks."""
    with launched(ranks, *arguments, cwd=cwd) as started:
        return started.communicate(timeout=LIMIT)


def run_jobs(ranks: int, jobs: list[dict], folder: Path) -> list[list[dict]]:
    """What each rank finds, by job of rank_program.py."""
    program, output = Path(__file__).with_name("rank_program.py"), folder / "results"
    assert launch(ranks, program, json.dumps(jobs), output, cwd=folder) == ("", "")
    results = [json.loads(Path(f"{output}.{rank}.json").read_text()) for rank in range(ranks)]
    return list(zip(*results, strict=True))


@contextmanager
def by_hand(commands: list[list], folders: list[Path], hostfile: Path):
    """The same without mlx.launch, which ends all ranks when one fails: processes, by rank."""
    first = free_ports(len(commands))
    hostfile.write_text(json.dumps([[f"127.0.0.1:{first + i}"] for i in range(len(commands))]))
    with ExitStack() as stack:
        ranks = []
        for rank, (command, folder) in enumerate(zip(commands, folders, strict=True)):
            variables = os.environ | dict(MLX_HOSTFILE=str(hostfile), MLX_RANK=str(rank))
            command = [sys.executable, *map(str, command)]
            ranks.append(stack.enter_context(process(command, cwd=folder, env=variables)))
        yield ranks


def ends(ranks: list[subprocess.Popen]) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each rank."""
    outputs = [rank.communicate(timeout=LIMIT) for rank in ranks]
    return [(rank.returncode, *output) for rank, output in zip(ranks, outputs, strict=True)]
