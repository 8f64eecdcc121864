"""Convert a Hugging Face checkpoint to a folder that main.py loads: weights.npz, config.json and
tokenizer files.

    python convert.py --model google/flan-t5-base
    python convert.py --model path/to/checkpoint --dtype float32
    python convert.py --model t5-11b --quantize --q-bits 4
"""

import terminal  # noqa: F401 (first: it checks Python and the packages)

# isort: split
import json
import re
import shutil
import sys
from pathlib import Path

import mlx.core as mx
from filelock import FileLock

from checkpoints.folder import open_checkpoint, read_json
from checkpoints.hub import fetch
from checkpoints.quantization import BITS, GROUP_SIZES, MODES, Quantization
from checkpoints.weights import DTYPES, stored_size, write_weights
from errors import InputError, naming
from families import architecture_of, default_dtype, family_of
from families.causal_loading import convert_with_mlx_lm, is_causal, is_decoder_only
from families.folders import WEIGHTS, converted_path
from families.loading import build, read_tokenizers, weight_shapes
from terminal import cli
from text.generation import FILE as GENERATION


def read_config(folder: Path) -> dict:
    """The raw config.json, with the token ids that transformers' `generate` would use."""
    raw = read_json(folder / "config.json")
    if "converted_from" in raw:
        raise InputError(f"{folder} is already converted; convert the checkpoint it was made from")
    if (architecture := architecture_of(raw)).endswith("EncoderModel"):
        raise InputError(f"{folder}: {architecture} has no decoder, so it cannot generate text")
    if (folder / GENERATION).exists():
        given = read_json(folder / GENERATION).items()
        raw |= {k: v for k, v in given if k.endswith("_token_id") and v is not None}
    return raw


def converted_size(
    folder: Path, dtype: str | None, quantization: Quantization | None = None
) -> int:
    """Bytes of the weights once converted, computed from the folder's config.json alone: the weights may be
    missing. InputError for a model that cannot be converted."""
    with naming(folder):
        raw = read_config(folder)
        family = family_of(raw)
        shapes = weight_shapes(family.model(family.config.from_hub(raw, None)))
    return stored_size(shapes, dtype or default_dtype(raw), family.float32, quantization)


def convert(
    model: str,
    output: Path | None = None,
    dtype: str | None = None,
    revision: str | None = None,
    force: bool = False,
    exist_ok: bool = False,
    quantization: Quantization | None = None,
) -> Path:
    """Convert `model`, a hub id or a folder, and return the converted folder.

    The default output is mlx_models/<last part of the name>, the default dtype the family's. The output appears
    complete or not at all. If it exists, raise InputError, unless `force` (replace it) or `exist_ok` (keep it).
    Weights are converted in blocks, so memory does not grow with the checkpoint.
    """
    output = output or converted_path(model)
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.parent / f".{output.name}.partial"
    with FileLock(output.parent / f".{output.name}.lock"):  # waits for another conversion
        shutil.rmtree(partial, ignore_errors=True)  # left by a crash
        if output.exists() and exist_ok:
            return output
        if output.exists() and not force:
            raise InputError(f"{output} already exists; --force replaces it")
        if output.exists() and not (output / WEIGHTS).exists() and not is_causal(output):
            raise InputError(f"{output} is not a converted model; --force does not replace it")
        try:
            how = dtype, quantization
            source = fetch(model, revision, output, lambda folder: _size(folder, *how))
            if _for_mlx_lm(source):
                how = dtype or "bfloat16", quantization
                convert_with_mlx_lm(model, partial, *how, revision)
            else:
                partial.mkdir()
                _write(source, partial, *how, model)
            if output.exists():
                shutil.rmtree(output)
            partial.rename(output)
        except OSError as error:
            written = error.filename2 or error.filename
            if written is None or str(partial) in str(written):  # a full disk names no file
                raise OSError(error.errno, error.strerror, str(output)) from None
            raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return output


def _size(folder: Path, dtype: str | None, quantization: Quantization | None) -> int | None:
    """Like `converted_size`; None for a model that mlx-lm converts: mlx-lm fetches the weights itself."""
    return None if _for_mlx_lm(folder) else converted_size(folder, dtype, quantization)


def _for_mlx_lm(folder: Path) -> bool:
    config = folder / "config.json"
    return config.exists() and is_decoder_only(read_json(config))


def _note(dtype: str) -> str | None:
    """What to say about weights in 16 bits, chosen by us, on this machine."""
    if mx.default_device() == mx.cpu:
        return f"weights in {dtype}; without a GPU --dtype float32 is several times faster"
    chip = str(mx.device_info().get("device_name", ""))
    if not re.match(r"Apple M[12]\b", chip):
        return None
    why = f"{chip} emulates bfloat16"
    return f"weights in {dtype}: {why}{'' if dtype == 'float16' else ', but the model needs its range'}"


def _write(
    source: Path, output: Path, dtype: str | None, quantization: Quantization | None, origin: str
) -> None:
    with naming(source):
        raw = read_config(source)
        family = family_of(raw)
        tensors = family.rename(open_checkpoint(source))
        config = family.config.from_hub(raw, tensors)
        build(family, config, {name: tensor.shape for name, tensor in tensors.items()})
        if raw.get("feed_forward_proj") == "gelu" and config.to_dict().get("gated"):
            # Some copies of flan-t5-xxl have this.
            note = "config.json says gelu, but the weights are gated: using gated-gelu"
            print(f"{source}: {note}", file=sys.stderr)
        if dtype is None:
            dtype = default_dtype(raw)
            if note := _note(dtype):
                print(f"{source}: {note}", file=sys.stderr)
        family.write_tokenizer(source, output)
        read_tokenizers(output, config)
    write_weights(output / WEIGHTS, tensors, dtype, family.float32, quantization)
    values = raw | config.to_dict() | {"dtype": dtype, "converted_from": origin}
    if quantization:
        values["quantization"] = quantization.to_dict()
    (output / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    if (source / GENERATION).exists():
        shutil.copyfile(source / GENERATION, output / GENERATION)


def parse_args(argv: list[str] | None = None):
    what = "Turn a Hugging Face checkpoint into a folder that main.py loads."
    parser = cli.Parser(prog="convert.py", description=what)
    flag = parser.add_argument
    flag(
        "--model", type=cli.name, required=True, help="a name on the Hugging Face hub, or a folder"
    )
    where = "where to write (default: mlx_models/<last part of the name>)"
    flag("--mlx-path", type=cli.path, help=where)
    flag(
        "--dtype",
        choices=DTYPES,
        help="type of the weights (default: float16 for Whisper and for BART's kin except Pegasus, else bfloat16)",
    )
    smaller = "quantize the weights: smaller, but less precise"
    flag("-q", "--quantize", action="store_true", help=smaller)
    modes = "quantization mode; all but affine are microscaling formats (default: affine)"
    flag("--q-mode", choices=MODES, help=modes)
    flag(
        "--q-bits", type=int, choices=BITS, help="bits per weight (default: the mode's; affine: 4)"
    )
    flag(
        "--q-group-size",
        type=int,
        choices=GROUP_SIZES,
        help="weights per scale (default: the mode's; affine: 64)",
    )
    flag("--revision", type=cli.name, help="branch, tag or commit on the hub")
    flag("--force", action="store_true", help="replace an earlier conversion")
    args = parser.parse_args(argv)
    if not args.quantize and (args.q_mode or args.q_bits or args.q_group_size):
        parser.error("--q-mode, --q-bits and --q-group-size need --quantize")
    return args


def main() -> None:
    args = parse_args()
    wanted = (args.q_mode or "affine", args.q_bits or 0, args.q_group_size or 0)
    quantization = Quantization(*wanted) if args.quantize else None
    how = dict(revision=args.revision, force=args.force, quantization=quantization)
    print(convert(args.model, args.mlx_path, args.dtype, **how))


if __name__ == "__main__":
    cli.run(main)
