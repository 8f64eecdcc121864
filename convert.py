"""Convert a Hugging Face T5 checkpoint to a folder that main.py loads: weights.npz, config.json
and the tokenizer's files.

    python convert.py --model google/flan-t5-base
    python convert.py --model path/to/checkpoint --dtype float32
    python convert.py --model t5-11b --quantize --q-bits 4
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

from checkpoints.config import Config
from checkpoints.files import Tensor, open_checkpoint, read_json
from checkpoints.hub import fetch
from checkpoints.quantization import BITS, GROUP_SIZES, MODES, Quantization
from checkpoints.tokenizer import FILE as TOKENIZER
from checkpoints.tokenizer import SOURCES as TOKENIZER_FILES
from checkpoints.tokenizer import byte_tokenizer, like_sentencepiece
from checkpoints.weights import DEFAULT_DTYPE, DTYPES, stored_size, write_weights
from errors import InputError
from families.loading import WEIGHTS, check_weights, converted_path, weight_shapes
from terminal import cli

MODEL_TYPES = ("t5", "mt5", "umt5")  # byT5, UL2, FLAN, MADLAD-400 and others say t5 or mt5

# Hugging Face's names -> ours, first match wins. None: dropped on purpose.
_ATTENTION = {"q": "query", "k": "key", "v": "value", "o": "out"}
_FEED_FORWARD = {"wi": "up", "wi_0": "gate", "wi_1": "up", "wo": "down"}
_SUBLAYERS = {
    ("encoder", "0"): "attention",
    ("encoder", "1"): "feed_forward",
    ("decoder", "0"): "attention",
    ("decoder", "1"): "cross_attention",
    ("decoder", "2"): "feed_forward",
}
_LAYER = r"(encoder|decoder)\.block\.(\d+)\.layer\.(\d)\."
_NAMES = [
    (r"shared\.weight", lambda m: "embedding.weight"),
    (r"lm_head\.weight", lambda m: "head.weight"),
    (r"(encoder|decoder)\.final_layer_norm\.weight", lambda m: f"{m[1]}.norm.weight"),
    # In every old checkpoint, and never used by the model.
    (_LAYER + r"EncDecAttention\.relative_attention_bias\.weight", None),
    (
        _LAYER + r"SelfAttention\.relative_attention_bias\.weight",
        lambda m: f"{m[1]}.relative_bias.{m[2]}.weight",
    ),
    (
        _LAYER + r"(?:SelfAttention|EncDecAttention)\.([qkvo])\.weight",
        lambda m: f"{_sublayer(m)}.{_ATTENTION[m[4]]}.weight",
    ),
    (
        _LAYER + r"DenseReluDense\.(wi|wi_0|wi_1|wo)\.weight",
        lambda m: f"{_sublayer(m)}.{_FEED_FORWARD[m[4]]}.weight",
    ),
    (_LAYER + r"layer_norm\.weight", lambda m: f"{_sublayer(m)}_norm.weight"),
]
# Names of the one embedding, best first: a checkpoint may hold any of them, or several.
_EMBEDDINGS = (
    "shared.weight",
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "lm_head.weight",
)


def _sublayer(match: re.Match) -> str:
    stack, layer, part = match[1], match[2], match[3]
    return f"{stack}.layers.{layer}.{_SUBLAYERS[stack, part]}"


def our_name(name: str) -> str | None:
    """Our name of a checkpoint's tensor; None: not needed. InputError: never heard of it."""
    for pattern, rename in _NAMES:
        if match := re.fullmatch(pattern, name):
            return rename and rename(match)
    raise InputError(f"unknown tensor {name}: not a T5-type checkpoint")


def rename(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The checkpoint's tensors under our names, each once: aliases of the embedding are dropped."""
    embeddings = [name for name in _EMBEDDINGS if name in tensors]
    if not embeddings:
        raise InputError("the checkpoint has no shared.weight: not a T5-type model")
    rest = dict(tensors)
    source, *aliases = (rest.pop(name) for name in embeddings)
    renamed = {"embedding.weight": source}
    if "lm_head.weight" in embeddings[1:] and not _equal(source, aliases[-1]):
        renamed["head.weight"] = aliases[-1]
    for name, tensor in rest.items():
        if (ours := our_name(name)) is not None:
            renamed[ours] = tensor
    return renamed


def _equal(a: Tensor, b: Tensor) -> bool:
    if a == b:  # the same place in the same file
        return True
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return all(x.tobytes() == y.tobytes() for x, y in zip(a.blocks(), b.blocks(), strict=True))


def read_config(folder: Path) -> dict:
    """The raw config.json, with the token ids that transformers' generate would use."""
    raw = read_json(folder / "config.json")
    model_type = raw.get("model_type")
    if "converted_from" in raw:
        raise InputError(f"{folder} is a converted model already; convert what it was made from")
    listed = raw.get("architectures")
    architectures = " ".join(map(str, listed)) if isinstance(listed, list) else ""
    if (model_type is None and "T5" not in architectures) or model_type not in (None, *MODEL_TYPES):
        raise InputError(f"{folder}: a {model_type or architectures} model, not a T5-type one")
    if architectures.endswith("EncoderModel"):
        raise InputError(f"{folder}: {architectures}, an encoder without a decoder")
    generation = folder / "generation_config.json"
    if generation.exists():
        ids = ("decoder_start_token_id", "eos_token_id", "pad_token_id")
        raw |= {k: v for k, v in read_json(generation).items() if k in ids and v is not None}
    return raw


def converted_size(folder: Path, dtype: str, quantization: Quantization | None = None) -> int:
    """The bytes that the weights of the model in a folder's config.json take when converted.

    InputError if it is not a T5-type model. The weights themselves need not be there.
    """
    raw = read_config(folder)
    gated = str(raw.get("feed_forward_proj", "relu")).startswith("gated-")
    likely = [f"decoder.layers.0.feed_forward.{'gate' if gated else 'up'}.weight"]
    if raw.get("tie_word_embeddings") is False:
        likely.append("head.weight")
    return stored_size(weight_shapes(Config.from_hub(raw, likely)), dtype, quantization)


def write_tokenizer(folder: Path, output: Path) -> None:
    """Copy the tokenizer's files, and write the tokenizer.json that follows from them."""
    found = [name for name in TOKENIZER_FILES if (folder / name).exists()]
    for name in found:
        shutil.copyfile(folder / name, output / name)
    _fast_tokenizer(folder, found).save(str(output / TOKENIZER))


def _fast_tokenizer(folder: Path, found: list[str]) -> Tokenizer:
    if "spiece.model" not in found and TOKENIZER not in found:
        configs = [read_json(folder / n) for n in ("config.json", *found) if n.endswith(".json")]
        if any(config.get("tokenizer_class") == "ByT5Tokenizer" for config in configs):
            return byte_tokenizer()
        raise InputError(f"{folder}: no tokenizer: neither {TOKENIZER} nor spiece.model")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # that there is no PyTorch
    from transformers import AutoTokenizer, T5Tokenizer

    # For umT5 the automatic class reads tokenizer.json only.
    kind = AutoTokenizer if TOKENIZER in found else T5Tokenizer
    try:
        return like_sentencepiece(kind.from_pretrained(folder).backend_tokenizer)
    except (ValueError, OSError, ImportError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"{folder}: transformers cannot read the tokenizer: {reason}") from None


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold the file lock `path`, or wait for it; the system frees it when a process dies."""
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another conversion to {path.stem}", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def convert(
    model: str,
    output: Path | None = None,
    dtype: str = DEFAULT_DTYPE,
    revision: str | None = None,
    force: bool = False,
    exist_ok: bool = False,
    quantization: Quantization | None = None,
) -> Path:
    """Convert `model`, a hub id or a folder, and return the converted folder.

    The default output is mlx_models/<last part of the name>. It appears whole or not at all. An
    output that exists raises InputError, unless `force` (replace it) or `exist_ok` (leave it).
    Memory does not grow with the checkpoint: weights pass through in blocks.
    """
    output = output or converted_path(model)
    output.parent.mkdir(parents=True, exist_ok=True)
    with _lock(output.parent / f".{output.name}.lock"):
        old = _earlier(output)
        if old.exists() and not output.exists():  # killed while replacing it
            old.rename(output)
        if output.exists() and exist_ok:
            return output
        _check_output(output, force)

        def size(folder: Path) -> int:
            return converted_size(folder, dtype, quantization)

        source = fetch(model, revision, output, size)
        partial = output.parent / f".{output.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir()
            _write(source, partial, dtype, quantization, model)
            _publish(partial, output)
        except OSError as error:
            error.filename = error.filename or str(output)  # a full disk names no file
            raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return output


def _check_output(output: Path, force: bool) -> None:
    if not output.exists():
        return
    if not force:
        raise InputError(f"{output} exists already; --force replaces it")
    if not (output / WEIGHTS).exists():
        raise InputError(f"{output} is not a converted model; --force does not replace it")


def _write(
    source: Path, output: Path, dtype: str, quantization: Quantization | None, origin: str
) -> None:
    raw = read_config(source)
    try:
        tensors = rename(open_checkpoint(source))
        config = Config.from_hub(raw, tensors)
        check_weights(config, {name: tensor.shape for name, tensor in tensors.items()})
    except InputError as error:
        where = "" if str(source) in str(error) else f"{source}: "
        raise InputError(f"{where}{error}") from None
    if config.gated and raw.get("feed_forward_proj") == "gelu":  # in some copies of flan-t5-xxl
        print(
            f"{source}: gelu in config.json, gated weights: taken for gated-gelu", file=sys.stderr
        )
    write_tokenizer(source, output)
    write_weights(output / WEIGHTS, tensors, dtype, quantization)
    values = raw | config.to_dict() | {"dtype": dtype, "converted_from": origin}
    if quantization:
        values["quantization"] = quantization.to_dict()
    (output / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _earlier(output: Path) -> Path:
    """Where an earlier conversion waits while its successor takes its place."""
    return output.parent / f".{output.name}.old"


def _publish(partial: Path, output: Path) -> None:
    """Rename `partial` to `output`, over an earlier one."""
    old = _earlier(output)
    shutil.rmtree(old, ignore_errors=True)
    if output.exists():
        output.rename(old)
    partial.rename(output)
    shutil.rmtree(old, ignore_errors=True)


def parse_args(argv: list[str] | None = None):
    parser = cli.Parser(
        prog="convert.py",
        description="Convert a Hugging Face T5 checkpoint to MLX.",
    )
    parser.add_argument(
        "--model", type=cli.name, required=True, help="a name on the Hugging Face hub, or a folder"
    )
    parser.add_argument(
        "--mlx-path",
        type=cli.path,
        help="where to write (default: mlx_models/<last part of the name>)",
    )
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default=DEFAULT_DTYPE,
        help="of the weights (default: %(default)s)",
    )
    parser.add_argument(
        "-q", "--quantize", action="store_true", help="quantize the weights: smaller, less exact"
    )
    parser.add_argument(
        "--q-mode", choices=MODES, help="of quantization (default: affine; others are micro-scaled)"
    )
    parser.add_argument("--q-bits", type=int, choices=BITS, help="per weight (default: 4)")
    parser.add_argument(
        "--q-group-size", type=int, choices=GROUP_SIZES, help="weights of a scale (default: 64)"
    )
    parser.add_argument("--revision", type=cli.name, help="a branch, tag or commit on the hub")
    parser.add_argument("--force", action="store_true", help="replace an earlier conversion")
    args = parser.parse_args(argv)
    if not args.quantize and (args.q_mode or args.q_bits or args.q_group_size):
        parser.error("--q-mode, --q-bits and --q-group-size need --quantize")
    return args


def main() -> None:
    args = parse_args()
    quantization = None
    if args.quantize:
        quantization = Quantization(
            args.q_mode or "affine", args.q_bits or 0, args.q_group_size or 0
        )
    output = convert(
        args.model,
        args.mlx_path,
        args.dtype,
        args.revision,
        args.force,
        quantization=quantization,
    )
    print(output)


if __name__ == "__main__":
    cli.run(main)
