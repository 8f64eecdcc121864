"""Train the embedded pair: one SentencePiece vocabulary, a target and a smaller draft model.

    python -m demo.train tokenizer
    python -m demo.train target
    python -m demo.train draft

writes demo/target and demo/draft in Hugging Face format (bfloat16 safetensors). Needs
requirements-dev.txt; demo/README.md tells what the committed pair was trained with. The same seed
gives the same batches; floating-point sums, and so the weights, differ between machines.
"""

import argparse
import copy
import io
import json
import random
import shutil
import string
import time
from pathlib import Path

import sentencepiece
import torch
from transformers import T5Config, T5ForConditionalGeneration

from demo.tasks import KINDS, held_out_example, training_example

HERE = Path(__file__).parent
PAD, EOS = 0, 1
PIECES = 1024
BATCH_SIZE = 64

# What differs between the two: shape, schedule. As in real models there are more rows than pieces, and
# not the same number in both.
MODELS = {
    "target": dict(
        shape=dict(vocab_size=1056, d_model=160, d_kv=32, num_heads=4, d_ff=640, num_layers=3),
        steps=22_000,
        learning_rate=1e-3,
    ),
    "draft": dict(
        shape=dict(vocab_size=1040, d_model=64, d_kv=16, num_heads=4, d_ff=192, num_layers=1),
        steps=6_000,
        learning_rate=2e-3,
    ),
}
WARMUP_STEPS = 200


def train_tokenizer(seed: int) -> None:
    rng = random.Random(seed)

    def texts():
        for _ in range(60_000):
            example = training_example(rng)
            yield example.prompt
            yield example.answer

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=texts(),
        model_writer=model,
        model_type="unigram",
        vocab_size=PIECES,
        split_digits=True,
        normalization_rule_name="identity",
        character_coverage=1.0,
        required_chars=string.ascii_letters + string.digits + string.punctuation,
        pad_id=PAD,
        eos_id=EOS,
        unk_id=2,
        bos_id=-1,
        minloglevel=1,
    )
    config = dict(
        tokenizer_class="T5Tokenizer",
        extra_ids=0,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
    )
    for name in MODELS:
        folder = HERE / name
        folder.mkdir(exist_ok=True)
        (folder / "spiece.model").write_bytes(model.getvalue())
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def pad(rows: list[list[int]], fill: int) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [fill] * (width - len(row)) for row in rows])


def batches(pieces: sentencepiece.SentencePieceProcessor, seed: int):
    """Endless (tokens [B, S], labels [B, T]): rows of similar length share a batch."""
    rng = random.Random(seed)
    while True:
        examples = [training_example(rng) for _ in range(BATCH_SIZE * 32)]
        pairs = zip(
            pieces.encode([e.prompt for e in examples], add_eos=True),
            pieces.encode([e.answer for e in examples], add_eos=True),
            strict=True,
        )
        pairs = sorted(pairs, key=lambda pair: (len(pair[1]), len(pair[0])))
        groups = [pairs[i : i + BATCH_SIZE] for i in range(0, len(pairs), BATCH_SIZE)]
        rng.shuffle(groups)
        for group in groups:
            yield pad([s for s, _ in group], PAD), pad([t for _, t in group], -100)


@torch.no_grad()
def exact_match(model, pieces, kind: str, count: int, seed: int) -> float:
    """The share of `count` held-out examples of `kind` that greedy decoding answers exactly."""
    rng = random.Random(seed)
    examples = sorted(
        (held_out_example(rng, kind) for _ in range(count)), key=lambda e: len(e.answer)
    )
    right = 0
    for start in range(0, count, 100):
        group = examples[start : start + 100]
        tokens = pad(pieces.encode([e.prompt for e in group], add_eos=True), PAD)
        output = model.generate(
            input_ids=tokens,
            attention_mask=(tokens != PAD).long(),
            max_new_tokens=80,
            do_sample=False,
        )
        for example, row in zip(group, output.tolist(), strict=True):
            row = row[1 : row.index(EOS, 1)] if EOS in row[1:] else row[1:]
            right += pieces.decode(row) == example.answer
    return right / count


def evaluate(model, pieces, count: int, seed: int = 1) -> dict[str, float]:
    model.eval()
    scores = {kind: exact_match(model, pieces, kind, count, seed) for kind in KINDS}
    model.train()
    return scores


def train(name: str, seed: int, steps: int) -> None:
    folder = HERE / name
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    torch.manual_seed(seed)
    shape = MODELS[name]["shape"]
    config = T5Config(
        **shape,
        num_decoder_layers=shape["num_layers"],
        feed_forward_proj="relu",
        dropout_rate=0.0,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=PAD,
    )
    model = T5ForConditionalGeneration(config)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=MODELS[name]["learning_rate"], betas=(0.9, 0.98), weight_decay=0.01
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARMUP_STEPS, 1 - step / steps)
    )
    started = time.time()
    for step, (tokens, labels) in enumerate(batches(pieces, seed), start=1):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(
                input_ids=tokens, attention_mask=(tokens != PAD).long(), labels=labels
            ).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 1000 == 0 or step == steps:
            scores = evaluate(model, pieces, count=100)
            minutes = (time.time() - started) / 60
            print(f"{minutes:6.1f} min  step {step}  loss {loss.item():.4f}  {scores}", flush=True)
        if step % 4000 == 0 or step == steps:
            save(model, folder)
        if step == steps:
            break
    saved = T5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    print(json.dumps({"model": name, "exact_match": evaluate(saved, pieces, count=1000)}))


@torch.no_grad()
def fill_unused_rows(embedding: torch.Tensor) -> None:
    """Bring the rows that no piece has near zero, and so their logits, far below those of pieces:
    training leaves them improbable, and not more."""
    noise = torch.randn(embedding[PIECES:].shape, generator=torch.Generator().manual_seed(0))
    embedding[PIECES:] = 0.01 * noise


def save(model: T5ForConditionalGeneration, folder: Path) -> None:
    """bfloat16 weights and config.json, as a Hugging Face checkpoint folder."""
    scratch = folder / "saving"
    saved = copy.deepcopy(model)
    fill_unused_rows(saved.shared.weight)
    saved.to(torch.bfloat16).save_pretrained(scratch)
    for file in ("config.json", "model.safetensors"):
        (scratch / file).replace(folder / file)
    shutil.rmtree(scratch)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["tokenizer", *MODELS])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="default: as in MODELS")
    args = parser.parse_args()
    if args.what == "tokenizer":
        train_tokenizer(args.seed)
    else:
        train(args.what, args.seed, args.steps or MODELS[args.what]["steps"])


if __name__ == "__main__":
    main()
