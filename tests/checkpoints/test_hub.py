"""The hub: what is fetched, what is not, and everything that can go wrong on the way.

The client is the real one; the hub is tests/helpers/hub_server.py.
"""

import errno
import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from helpers import checkpoints
from helpers.hub_server import Hub, cut, refuse, replace, stall
from helpers.programs import ROOT
from huggingface_hub import constants

import main
from apps.cli import cli
from decoder import load
from speculative.checkpoints.folder import weight_files
from speculative.checkpoints.hub import fetch
from speculative.common.errors import InputError
from speculative.common.reporting import reporter
from speculative.models.conversion import convert
from speculative.models.loading import find
from speculative.models.sizes import describe

MODEL = "org/model"
CONFIG = b'{"model_type": "t5", "vocab_size": 9, "d_model": 4, "d_kv": 2, "d_ff": 4, "num_heads": 2, "num_layers": 1}'
WEIGHTS = bytes(range(256)) * 4000  # about a megabyte
SMALL = {"config.json": CONFIG, "generation_config.json": b"{}", "vocab.txt": b"pieces"}
SINGLE = SMALL | {"model.safetensors": WEIGHTS}


@pytest.fixture
def hub():
    with Hub() as hub:
        hub.add(MODEL, SINGLE)
        yield hub


@pytest.fixture
def cache(hub, tmp_path, monkeypatch) -> Path:
    """The client in this process talks to `hub`, and keeps its files in this folder."""
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    changes = dict(
        HF_HUB_OFFLINE=False,
        ENDPOINT=hub.url,
        HUGGINGFACE_CO_URL_TEMPLATE=template,
        HF_HUB_CACHE=str(tmp_path / "cache"),
        DOWNLOAD_CHUNK_SIZE=100_000,
    )
    for name, value in changes.items():
        monkeypatch.setattr(constants, name, value)
    wait(monkeypatch, 60)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    # Its second between two attempts.
    clock = SimpleNamespace(sleep=lambda seconds: None, time=time.time)
    monkeypatch.setattr(huggingface_hub.file_download, "time", clock)
    huggingface_hub.close_session()
    return tmp_path / "cache"


def wait(monkeypatch, seconds: float) -> None:
    """How long the client waits for an answer: not long where none comes, but a busy machine may be slow."""
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", seconds)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", seconds)


def run(hub: Hub, home: Path, command: str, *options, **environment) -> subprocess.Popen:
    """A command as a user starts it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "TRANSFORMERS_"))}
    home.mkdir(exist_ok=True)
    env |= dict(HF_HOME=str(home), HF_ENDPOINT=hub.url, NO_PROXY="127.0.0.1", **environment)
    parts = [sys.executable, ROOT / command, "--model", MODEL, *options]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return subprocess.Popen(parts, env=env, cwd=home, **pipes)


def index(*shards: str) -> bytes:
    return json.dumps({"weight_map": {f"w{i}": shard for i, shard in enumerate(shards)}}).encode()


SAFE, BIN = "model.safetensors", "pytorch_model.bin"
SAFE_INDEX, BIN_INDEX = f"{SAFE}.index.json", f"{BIN}.index.json"
NOISE = dict.fromkeys(
    [
        "README.md",
        "tf_model.h5",
        "flax_model.msgpack",
        "model.fp16.safetensors",
        "onnx/decoder_model.onnx",
        "onnx/config.json",
        "8bit/model.safetensors",
        "rust_model.ot",
    ],
    b"never asked for",
)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([SAFE, BIN], [SAFE]),
        ([SAFE, BIN, SAFE_INDEX, "a.safetensors", "b.safetensors"], [SAFE]),
        (
            [SAFE_INDEX, "a.safetensors", "b.safetensors", BIN],
            [SAFE_INDEX, "a.safetensors", "b.safetensors"],
        ),
        ([SAFE_INDEX, "a.safetensors", BIN], [BIN]),  # a shard is missing
        ([SAFE_INDEX, BIN_INDEX, "a.bin", "b.bin"], [BIN_INDEX, "a.bin", "b.bin"]),
    ],
)
def test_one_copy_of_the_weights_is_fetched_and_nothing_unneeded(hub, cache, files, expected):
    contents = {name: name.encode() for name in files}
    for name, suffix in ((SAFE_INDEX, "safetensors"), (BIN_INDEX, "bin")):
        if name in contents:
            contents[name] = index(f"a.{suffix}", f"b.{suffix}")
    hub.add(MODEL, SMALL | contents | NOISE)
    folder = fetch(MODEL)
    assert all((folder / n).read_bytes() == contents[n] for n in expected)
    looked_at = {SAFE_INDEX} & {*files} if SAFE not in files else set()
    assert {p.name for p in folder.iterdir()} == {*SMALL, *expected, *looked_at}
    assert weight_files({p.name for p in folder.iterdir()}, folder.joinpath) == expected
    assert sorted(hub.fetched()) == sorted({*SMALL, *expected, *looked_at})


@pytest.mark.slow
def test_the_command_downloads_once_and_then_works_offline(hub, tmp_path):
    source = checkpoints.make_folder(tmp_path / "source", "v1.1", shards=2)
    hub.add(MODEL, {p.name: p.read_bytes() for p in source.iterdir()})
    home, output = tmp_path / "home", tmp_path / "out"
    command = "convert.py", "--dtype", "float32", "--mlx-path"
    out, errors = run(hub, home, *command, output, HF_TOKEN="hf_secret").communicate()
    assert out == f"{output}\n"
    announced = rf"{MODEL}: downloading 0.00 GB to {home}/hub, and 0.00 GB converted to {output}\n"
    assert re.fullmatch(announced, errors)
    tokens = {headers.get("authorization") for _, path, headers in hub.requests if MODEL in path}
    assert tokens == {"Bearer hf_secret"}
    assert load(output)[0].config.num_decoder_layers == 3

    hub.requests.clear()
    offline = run(hub, home, *command, output, "--force", HF_HUB_OFFLINE="1")
    other = run(hub, tmp_path / "elsewhere", *command, tmp_path / "no", HF_HUB_OFFLINE="1")
    assert offline.communicate() == (f"{output}\n", "")
    assert other.communicate() == (
        "",
        f"convert.py: {MODEL} is not a folder, not complete in the cache "
        f"{tmp_path / 'elsewhere' / 'hub'}, and HF_HUB_OFFLINE is set\n",
    )
    assert other.returncode == 1
    assert hub.requests == []


@pytest.mark.slow
@pytest.mark.parametrize("role", ["target", "causal-target"])
def test_a_model_on_the_hub_is_decoded_by_its_name(hub, cache, tmp_path, monkeypatch, capsys, role):
    """Interrupted twice on the way, it goes on; then it needs no hub."""
    monkeypatch.chdir(tmp_path)
    prompt = "translate number to German: 1284"
    monkeypatch.setattr(sys, "argv", ["main.py", "--model", MODEL, "--prompt", prompt])
    monkeypatch.setattr(reporter, "note", lambda line: print(line, file=sys.stderr))
    hub.add(MODEL, {p.name: p.read_bytes() for p in (ROOT / "demo" / role).iterdir()})
    for end in (1_000_000, 2_000_000):
        hub.faults = {"GET .*safetensors": cut(end)}
        with pytest.raises(InputError, match="run the same command to resume"):
            main.main()
    hub.faults = {}
    capsys.readouterr()
    for note in (f"{MODEL}: downloading 0.00 GB", ""):
        hub.requests.clear()
        main.main()
        out, errors = capsys.readouterr()
        assert out == "eintausendzweihundertvierundachtzig\n" and errors.startswith(note)
    assert hub.requests == []


@pytest.mark.parametrize("answer", [None, "", "n\n", "y\n"])  # nobody is there; Ctrl-D; no; yes
@pytest.mark.parametrize("decoder_only", [False, True])
def test_a_large_download_is_asked_for(hub, cache, tmp_path, monkeypatch, decoder_only, answer):
    monkeypatch.chdir(tmp_path)
    if decoder_only:
        config = b'{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}'
        hub.add(MODEL, SINGLE | {"config.json": config})
    hub.sizes[SAFE] = 20_100_000_000
    usage(monkeypatch, 10**12)
    monkeypatch.setattr(reporter, "confirm", None if answer is None else cli.confirm)
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    with pytest.raises(InputError) as caught:
        load(MODEL)
    refused = f"{MODEL} is a download of 20.10 GB; to start it: python convert.py --model {MODEL}"
    declined = f"the download of {MODEL} is not started; smaller models: docs/models.md"
    expected = refused if answer is None else declined
    assert answer == "y\n" or str(caught.value) == expected
    assert (SAFE in hub.fetched()) == (answer == "y\n")


def test_what_a_model_would_take_is_told_by_its_config_alone(hub, cache):
    hub.sizes[SAFE] = 6_000_000_000
    download, about, *lines, draft = describe(MODEL)
    assert draft == "a draft model of one layer, made by distill.py: 0.00 GB more"
    assert download == "download: 6.00 GB" and about.endswith(
        "8 prompts and outputs of 512 tokens:"
    )
    assert lines == [f"  in {bits} bits 0.00 GB, a Mac of 8 GB" for bits in (16, 8, 4)]
    assert hub.fetched() == ["config.json"]


def test_what_is_no_family_of_ours_is_told_by_its_config_alone(hub, cache, tmp_path):
    hub.add(MODEL, SINGLE | {"config.json": b'{"model_type": "led"}'})
    with pytest.raises(InputError) as error:
        convert(MODEL, tmp_path / "out")
    assert str(error.value).startswith(f"{MODEL}: a led model; there are t5, mt5, umt5,")
    assert hub.fetched() == ["config.json"]


def test_what_is_cached_needs_no_server(hub, cache, monkeypatch):
    folder = fetch(MODEL)
    hub.requests.clear()
    assert fetch(MODEL) == folder
    assert hub.fetched() == []  # one look whether it has changed
    assert len(hub.requests) == 1
    wait(monkeypatch, 0.2)
    for fault in (refuse(503), stall):
        hub.faults = {"/api/": fault}
        assert fetch(MODEL) == folder
    hub.__exit__()
    assert fetch(MODEL) == folder
    with pytest.raises(InputError, match="cannot be downloaded"):
        fetch("org/other")


@pytest.mark.parametrize("revision", ["v1", "feature/x", "a" * 40])
def test_revisions_are_branches_tags_and_commits(hub, cache, revision):
    hub.refs |= {"v1": "b" * 40, "feature/x": "d" * 40}
    commit = hub.refs.get(revision, revision)
    hub.add(MODEL, SINGLE | {SAFE: b"another"}, commit)
    hub.add(MODEL, SINGLE, commit="e" * 40)
    for _ in ("online", "offline"):
        folder = fetch(MODEL, revision)
        assert folder.name == commit
        assert (folder / SAFE).read_bytes() == b"another"
        hub.faults = {"": refuse(500)}
    with pytest.raises(InputError, match="500"):
        fetch(MODEL, "main")


def test_an_interrupted_download_is_resumed_by_the_next_run(hub, cache):
    hub.faults = {"GET .*safetensors": cut(700_000)}
    with pytest.raises(InputError) as caught:
        fetch(MODEL)
    assert str(caught.value) == (
        f"{MODEL}: {SAFE}: the connection was lost after 0.00 GB of 0.00 GB; "
        "run the same command to resume"
    )
    hub.faults = {"": refuse(500)}
    with pytest.raises(InputError, match="500"):  # what is not whole is not taken from the cache
        fetch(MODEL)
    hub.faults.clear()
    hub.requests.clear()
    assert (fetch(MODEL) / SAFE).read_bytes() == WEIGHTS
    ranges = [headers["Range"] for *_, headers in hub.requests if "Range" in headers]
    assert ranges == ["bytes=700000-"]
    assert hub.sent[SAFE] == len(WEIGHTS)
    assert not list(cache.rglob("*.incomplete"))


def test_two_downloads_at_once_fetch_each_file_once(hub, cache):
    threads = [threading.Thread(target=fetch, args=(MODEL,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hub.sent[SAFE] == len(WEIGHTS)
    assert (fetch(MODEL) / SAFE).read_bytes() == WEIGHTS


def test_damage_on_the_way_is_seen_and_not_kept(hub, cache):
    hub.faults = {"GET .*safetensors": replace(lambda content: b"x" + content[1:])}
    with pytest.raises(InputError, match="arrived damaged; run the same command again"):
        fetch(MODEL)
    hub.faults.clear()
    assert (fetch(MODEL) / SAFE).read_bytes() == WEIGHTS


def usage(monkeypatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))


def test_room_is_checked_before_the_download(hub, cache, tmp_path, monkeypatch):
    hub.sizes[SAFE] = 45_200_000_000
    usage(monkeypatch, 30_000_000_000)
    with pytest.raises(InputError) as caught:
        fetch(MODEL, None, tmp_path / "out", lambda *args: 22_600_000_000)
    assert str(caught.value) == (
        f"{MODEL} needs 45.20 GB for the download and 22.60 GB converted, but {cache} "
        "has 30.00 GB free (move the cache with HF_HOME, the result with --mlx-path)"
    )
    assert hub.fetched() == ["config.json"]


def test_room_is_what_is_still_missing(hub, cache, tmp_path, monkeypatch):
    hub.faults = {"GET .*safetensors": cut(1_000_000)}
    with pytest.raises(InputError, match="was lost"):
        fetch(MODEL)
    hub.faults.clear()
    missing = len(WEIGHTS) - 1_000_000
    usage(monkeypatch, missing + 499)
    with pytest.raises(InputError, match="needs"):
        fetch(MODEL, None, tmp_path, lambda *args: 500)
    usage(monkeypatch, missing + 500)
    fetch(MODEL, None, tmp_path, lambda *args: 500)


def test_a_disk_that_fills_up_on_the_way(hub, cache, monkeypatch):
    def fill(url, file, **kwargs):
        file.write(b"x" * 1000)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(huggingface_hub.file_download, "http_get", fill)
    with pytest.raises(InputError) as caught:
        fetch(MODEL)
    assert str(caught.value) == (
        f"{MODEL} fills the disk of {cache}: free some space or set HF_HOME, then run it again"
    )


def without(name: str) -> dict[str, bytes]:
    return {k: v for k, v in SINGLE.items() if k != name}


FLAX = without(SAFE) | {"tf_model.h5": b""}
NO_WEIGHTS = " has no complete safetensors or pytorch_model.bin weights"
FAILED = " cannot be downloaded from the Hugging Face hub: "
NOT_THERE = (
    " is neither a folder nor on the Hugging Face hub (if it is private, run `hf auth login`)"
)
GATED = " is gated: accept its terms on the hub, then run `hf auth login`"


@pytest.mark.parametrize(
    ("files", "faults", "message"),
    [
        (SINGLE, {"resolve": refuse(403, "GatedRepo")}, GATED),
        (SINGLE, {"": refuse(500)}, f"{FAILED}Server error '500 Internal Server Error'"),
        (SINGLE, {"": stall}, f"{FAILED}timed out"),
        (without("config.json"), {}, " has no config.json, so it is not a Hugging Face model"),
        (FLAX, {}, NO_WEIGHTS),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    hub, cache, tmp_path, monkeypatch, files, faults, message
):
    hub.add(MODEL, files)
    if "timed out" in message:
        wait(monkeypatch, 0.2)
    hub.faults = faults
    with pytest.raises(InputError) as caught:
        convert(MODEL, tmp_path / "out")
    assert str(caught.value).startswith(MODEL + message)
    assert SAFE not in hub.sent
    assert {p.name for p in tmp_path.iterdir()} <= {"cache", ".out.lock"}


@pytest.mark.parametrize(
    ("name", "revision", "message"),
    [
        ("org/none", None, NOT_THERE),
        ("a--b/c..d", None, NOT_THERE),
        ("./no/such/folder", None, " is neither a folder nor a name on the Hugging Face hub"),
        (MODEL, "v9", " has no revision v9 on the Hugging Face hub"),
    ],
)
def test_names_and_revisions_that_are_not_there_are_named(hub, cache, name, revision, message):
    with pytest.raises(InputError) as caught:
        fetch(name, revision)
    assert str(caught.value) == name + message


def test_a_folder_called_like_an_owner_does_not_hide_the_hub(hub, cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("org/another").mkdir(parents=True)
    with pytest.raises(InputError, match=f"^org/none{re.escape(NOT_THERE)}"):
        find("org/none")
    for name in ("mlx_models/none", "./none"):
        with pytest.raises(InputError, match=f"^no model '{name}' here"):
            find(name)
