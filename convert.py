"""Convert a Hugging Face checkpoint to a folder that main.py loads.

python convert.py --model google/flan-t5-base
python convert.py --model demo/target --dtype float32
python convert.py --model google-t5/t5-11b --quantize --q-bits 4
"""

import apps.cli  # noqa: F401 (first: it checks Python and the packages)
from apps.cli import cli
from apps.cli.flags import add_shared
from speculative.checkpoints.weights import BITS, DTYPES, GROUP_SIZES, MODES, Quantization
from speculative.models.conversion import convert
from speculative.models.sizes import describe


def parse_args(argv: list[str] | None = None):
    parser = cli.Parser(
        prog="convert.py",
        description="Turn a Hugging Face checkpoint into a folder that main.py loads.",
    )
    flag = parser.add_argument
    # fmt: off
    flag("--model", "--hf-path", type=cli.name, required=True,
         help="a name on the Hugging Face hub, or a folder; an adapter's is merged into the base that it names")
    add_shared(parser, "--adapter-path")
    flag("--mlx-path", type=cli.path, help="where to write (default: mlx_models/<last part of the name>)")
    flag("--dtype", choices=DTYPES,
         help="type of the weights (default: float16 for Whisper and for BART's kin except Pegasus, else bfloat16)")
    flag("-q", "--quantize", action="store_true", help="quantize the weights: smaller, but less precise")
    flag("--q-mode", choices=MODES,
         help="format of quantized weights; keep affine unless you want one of the others, whose bits and groups are "
         "fixed (default: affine)")
    flag("--q-bits", type=int, choices=BITS, help="bits per weight (default: the mode's; affine: 4)")
    flag("--q-group-size", type=int, choices=GROUP_SIZES,
         help="how many weights share a scale; take a smaller number if outputs get worse: more exact, more memory "
         "(default: the mode's; affine: 64)")
    flag("--revision", type=cli.name, help="branch, tag or commit on the hub")
    flag("--force", action="store_true", help="replace an earlier conversion")
    flag("--dry-run", action="store_true", help="only say what it would take: bytes to download, memory, and the smallest Mac")
    # fmt: on
    args = parser.parse_args(argv)
    if not args.quantize and (args.q_mode or args.q_bits or args.q_group_size):
        parser.error("--q-mode, --q-bits and --q-group-size need --quantize")
    return args


def main() -> None:
    args = parse_args()
    if args.dry_run:
        print(*describe(args.model, args.revision), sep="\n")
        return
    quantization = None
    if args.quantize:
        mode = args.q_mode or "affine"
        quantization = Quantization(mode, args.q_bits or 0, args.q_group_size or 0)
    folder = convert(
        args.adapter_path or args.model,
        args.mlx_path,
        args.dtype,
        revision=args.revision,
        force=args.force,
        quantization=quantization,
        base=args.model if args.adapter_path else None,
    )
    print(folder)


if __name__ == "__main__":
    cli.run(main)
