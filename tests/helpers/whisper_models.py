"""Small Whisper models of random weights, in folders as the hub has them."""

import json
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from apps.speech.rules import Special
from speculative.models.conversion import convert

LANGUAGES = ("en", "de", "fr")
POSITIONS = 30  # of the encoder: a window is 60 frames, 0.6 s
END = 256  # bytes come before
SPECIAL = [
    *("<|endoftext|>", "<|startoftranscript|>"),
    *(f"<|{language}|>" for language in LANGUAGES),
    *("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>"),
    *("<|nospeech|>", "<|notimestamps|>"),
]
IDS = {name[2:-2]: END + i for i, name in enumerate(SPECIAL)}
FIRST_STAMP = END + len(SPECIAL)
VOCAB = FIRST_STAMP + POSITIONS + 1

_NEVER = ("startoftranscript", "translate", "transcribe", "startoflm", "startofprev", "nospeech")

SHAPE = dict(
    vocab_size=VOCAB,
    num_mel_bins=80,
    d_model=32,
    encoder_layers=2,
    encoder_attention_heads=2,
    encoder_ffn_dim=64,
    decoder_layers=2,
    decoder_attention_heads=2,
    decoder_ffn_dim=64,
    max_source_positions=POSITIONS,
    max_target_positions=64,
    pad_token_id=END,
    bos_token_id=END,
    eos_token_id=END,
    decoder_start_token_id=END + 1,
)
GENERATION = dict(
    is_multilingual=True,
    lang_to_id={f"<|{code}|>": IDS[code] for code in LANGUAGES},
    task_to_id={task: IDS[task] for task in ("transcribe", "translate")},
    no_timestamps_token_id=IDS["notimestamps"],
    prev_sot_token_id=IDS["startofprev"],
    max_initial_timestamp_index=10,
    suppress_tokens=[7, 8, 9, *(IDS[name] for name in _NEVER)],
    begin_suppress_tokens=[32, END],
    max_length=64,
    pad_token_id=END,
    bos_token_id=END,
    eos_token_id=END,
    decoder_start_token_id=END + 1,
)


def tokenizer(words: int = 0, stamps: bool = True) -> Tokenizer:
    """Bytes, and Whisper's special tokens and timestamps; a fine-tune's words behind them."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIAL])
    times = [f"<|{i * 0.02:.2f}|>" for i in range(POSITIONS + 1) if stamps]
    added = [*times, *(f" word{i}" for i in range(words))]
    made.add_tokens([AddedToken(name, normalized=False) for name in added])
    return made


def special(made: Tokenizer | None = None, rows: int = VOCAB, **generation) -> Special:
    """The special tokens of a vocabulary, with so many rows in the embedding."""
    sizes = dict(vocab_size=rows, max_source_positions=POSITIONS)
    config = SimpleNamespace(eos_token_ids=(END,), **sizes)
    return Special.read(made or tokenizer(), GENERATION | generation, config)


def reference_model(seed: int = 0, spread: float = 1.0, **changes):
    """transformers' model, whose texts hang on the sound."""
    torch.manual_seed(seed)
    config = transformers.WhisperConfig(**SHAPE | changes)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.normal_(1.0 if "weight" in name else 0.0, 0.2)
            elif "embed_tokens" in name:
                weight.normal_(0.0, 0.3)
            else:
                inputs = weight[0].numel() if weight.dim() > 1 else 16
                weight.normal_(0.0, spread * 1.5 * inputs**-0.5)
    for name, value in GENERATION.items():
        setattr(model.generation_config, name, value)
    model.generation_config.return_timestamps = False
    return model


def write_hub(model, folder: Path, **how) -> Path:
    """The model as a checkpoint of the hub's."""
    model.save_pretrained(folder, **how)
    tokenizer().save(str(folder / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return folder


def converted(model, folder: Path, **how) -> Path:
    """The model converted to float32; the name of its folder."""
    convert(str(write_hub(model, folder / "hub")), folder / "ours", **{"dtype": "float32"} | how)
    return folder / "ours"


def disturbed(model, noise: float, *parts: str, seed: int = 0):
    """A copy with relative noise on the weights whose names hold one of `parts`; all of them where there are none."""
    copy = deepcopy(model)
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in copy.named_parameters():
            if not parts or any(part in name for part in parts):
                weight.add_(torch.randn_like(weight) * noise * weight.std())
    return copy


def write_pair(folder) -> None:
    """A target and a draft model with its encoder, converted, as `target` and `shared` in a folder."""
    target = reference_model(max_target_positions=24)
    for name, model in (("target", target), ("shared", disturbed(target, 0.03, "model.decoder"))):
        converted(model, folder / f"made-{name}").rename(folder / name)
