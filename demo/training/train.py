"""Train the embedded pairs: one SentencePiece vocabulary, and of each kind a target and a smaller draft.

    python -m demo.training.train tokenizer
    python -m demo.training.train target
    python -m demo.training.train draft
    python -m demo.training.train causal-target
    python -m demo.training.train causal-draft

writes demo/target and so on in Hugging Face format (bfloat16 safetensors). Needs
requirements-dev.txt; demo/README.md tells what the committed pairs were trained with. The same seed
gives the same batches; floating-point sums, and so the weights, differ between machines.
"""

import argparse
import io
import json
import random
import string
import time
from pathlib import Path

import sentencepiece
import torch

from demo.training.tasks import held_out_example, training_example
from demo.training.torch_models import EOS, PAD, PIECES, DecoderOnly, EncoderDecoder, save
from speculative.text.tokenizer_files import from_transformers

DEMO = Path(__file__).parents[1]
MOST_ROWS, MOST_TOKENS = 64, 2048  # of a batch
PARAGRAPHS = 0.3  # of an encoder-decoder's examples

# What differs between the models: kind, shape, schedule. As in real models there are more rows than
# pieces, and not the same number in target and draft.
MODELS = {
    "target": dict(
        kind=EncoderDecoder,
        shape=dict(vocab_size=1056, d_model=160, d_kv=32, num_heads=4, d_ff=640, num_layers=3),
        steps=7_000,
        learning_rate=2e-3,
    ),
    "draft": dict(
        kind=EncoderDecoder,
        shape=dict(vocab_size=1040, d_model=64, d_kv=16, num_heads=4, d_ff=192, num_layers=1),
        steps=3_000,
        learning_rate=4e-3,
    ),
    "causal-target": dict(
        kind=DecoderOnly,
        shape=dict(
            vocab_size=1056,
            hidden_size=192,
            num_attention_heads=6,
            intermediate_size=512,
            num_hidden_layers=4,
        ),
        steps=3_000,
        learning_rate=2e-3,
    ),
    "causal-draft": dict(
        kind=DecoderOnly,
        shape=dict(
            vocab_size=1040,
            hidden_size=64,
            num_attention_heads=4,
            intermediate_size=192,
            num_hidden_layers=1,
        ),
        steps=3_000,
        learning_rate=4e-3,
    ),
}
WARMUP_STEPS = 200
PIECES_FILE = DEMO / "target" / "spiece.model"
MARKS = ("<|user|>", "<|assistant|>")  # the tokens USER and ASSISTANT
CHAT_TEMPLATE = (
    "<|user|>{{ messages | map(attribute='content') | join(' ') }}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


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
    tokens = dict(pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    config = dict(tokenizer_class="T5Tokenizer", extra_ids=0) | tokens
    for name in ("target", "draft"):
        folder = DEMO / name
        folder.mkdir(exist_ok=True)
        (folder / "spiece.model").write_bytes(model.getvalue())
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    config = dict(tokenizer_class="PreTrainedTokenizerFast", chat_template=CHAT_TEMPLATE) | tokens
    for name in ("causal-target", "causal-draft"):
        folder = DEMO / name
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer.json").write_text(chat_tokenizer(), encoding="utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def chat_tokenizer() -> str:
    """The tokenizer.json of the same pieces with marks for a chat, and nothing added to a text."""
    tokenizer = from_transformers("T5Tokenizer", PIECES_FILE.parent)
    tokenizer.add_special_tokens(list(MARKS))
    state = json.loads(tokenizer.to_str()) | {"post_processor": None}
    return json.dumps(state, ensure_ascii=False) + "\n"


def batches(pieces: sentencepiece.SentencePieceProcessor, model, seed: int):
    """Endless (prompts, answers), rows of tokens: rows of similar length share a batch."""
    rng = random.Random(seed)
    while True:
        kinds = [
            "paragraph" if rng.random() < PARAGRAPHS * ("paragraph" in model.kinds) else None
            for _ in range(MOST_ROWS * 32)
        ]
        examples = [training_example(rng, kind) for kind in kinds]
        prompts = pieces.encode([e.prompt for e in examples])
        answers = pieces.encode([e.answer for e in examples], add_eos=True)
        groups: list[list] = [[]]
        for pair in sorted(zip(prompts, answers, strict=True), key=lambda p: model.length(*p)):
            longest = max(map(len, pair))
            if len(groups[-1]) >= min(MOST_ROWS, MOST_TOKENS // longest):
                groups.append([])
            groups[-1].append(pair)
        rng.shuffle(groups)
        for group in groups:
            yield [prompt for prompt, _ in group], [answer for _, answer in group]


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
        rows = model.answer(pieces.encode([e.prompt for e in group]))
        for example, row in zip(group, rows, strict=True):
            row = row[: row.index(EOS)] if EOS in row else row
            right += pieces.decode([i for i in row if i < PIECES]) == example.answer
    return right / count


def evaluate(model, pieces, count: int, seed: int = 1) -> dict[str, float]:
    model.network.eval()
    scores = {kind: exact_match(model, pieces, kind, count, seed) for kind in model.kinds}
    model.network.train()
    return scores


def train(name: str, seed: int, steps: int) -> None:
    folder = DEMO / name
    folder.mkdir(exist_ok=True)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(PIECES_FILE))
    torch.manual_seed(seed)
    model = MODELS[name]["kind"](MODELS[name]["shape"])
    optimizers = model.optimizers(MODELS[name]["learning_rate"])
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / WARMUP_STEPS, 1 - step / steps)
        )
        for optimizer in optimizers
    ]
    started = time.time()
    for step, (prompts, answers) in enumerate(batches(pieces, model, seed), start=1):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model.loss(prompts, answers)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.network.parameters(), 1.0)
        for part in (*optimizers, *schedules):
            part.step()
        model.network.zero_grad()
        if step % 1000 == 0 or step == steps:
            scores = evaluate(model, pieces, count=100)
            minutes = (time.time() - started) / 60
            print(f"{minutes:6.1f} min  step {step}  loss {loss.item():.4f}  {scores}", flush=True)
        if step % 2000 == 0 or step == steps:
            save(model, folder)
        if step == steps:
            break
    model.network = model.network.from_pretrained(folder, dtype=torch.float32)
    print(json.dumps({"model": name, "exact_match": evaluate(model, pieces, count=1000)}))


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
