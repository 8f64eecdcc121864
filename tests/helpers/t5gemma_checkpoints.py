"""Small random T5Gemma checkpoints in the hub's layout, and their torch models."""

import json
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import BPE

SLIDING, FULL = "sliding_attention", "full_attention"

# Raw config.json contents. Every dimension differs from every other, the encoder's from the decoder's;
# windows are shorter than the texts, and the scores of these weights reach the soft caps.
ENCODER = dict(
    vocab_size=61,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=10,
    query_pre_attn_scalar=7,
    sliding_window=3,
    max_position_embeddings=64,
    attn_logit_softcapping=5.0,
    final_logit_softcapping=0.3,
    pad_token_id=0,
    eos_token_id=1,
    bos_token_id=2,
)
DECODER = ENCODER | dict(
    hidden_size=20,
    intermediate_size=36,
    num_hidden_layers=4,
    num_attention_heads=4,
    head_dim=6,
    query_pre_attn_scalar=5,
    sliding_window=5,
    max_position_embeddings=500,
)


def raw_config(encoder: dict | None = None, decoder: dict | None = None, **both) -> dict:
    """A config.json with these changes to the stacks; what both have in `both`."""
    return dict(
        model_type="t5gemma",
        architectures=["T5GemmaForConditionalGeneration"],
        vocab_size=61,
        encoder=ENCODER | both | (encoder or {}),
        decoder=DECODER | both | (decoder or {}),
    )


VARIANTS = {
    "t5gemma": raw_config(),
    "one key head": raw_config(num_key_value_heads=1),
    "no groups, biases": raw_config(
        {"num_key_value_heads": 6}, {"num_key_value_heads": 4}, attention_bias=True
    ),
    "uncapped, grouped": raw_config(
        attn_logit_softcapping=None, sliding_window=4096, query_pre_attn_scalar=64
    ),
    "full first": raw_config(
        {"layer_types": [FULL, SLIDING, SLIDING]},
        {"layer_types": [FULL, FULL, SLIDING, FULL]},
        rope_parameters={"rope_type": "default", "rope_theta": 200.0},
    ),
    "own head": raw_config(final_logit_softcapping=3.0) | {"tie_word_embeddings": False},
}


def torch_config(raw: dict) -> transformers.PretrainedConfig:
    return transformers.AutoConfig.for_model(**raw)


def torch_model(raw: dict, seed: int = 0) -> torch.nn.Module:
    """A transformers model of the raw config, T5Gemma 2's as well, with random weights, every one of them
    in play."""
    torch.manual_seed(seed)
    model = getattr(transformers, raw["architectures"][0])(torch_config(raw)).eval()
    large = ("q_proj", "k_proj") if raw["model_type"] == "t5gemma" else ("_proj",)  # scores
    with torch.no_grad():
        for name, weight in model.named_parameters():
            scale = 2 if any(part in name for part in large) and "out_proj" not in name else 1
            if "norm" in name or name.endswith("bias"):
                weight.normal_(0, 0.3)
            elif (
                "embed_tokens.weight" in name
            ):  # large beside what layers add, a text repeats a token
                weight.normal_(0, 0.1 * weight.shape[1] ** -0.5)
            elif weight.dim() == 2:
                weight.normal_(0, scale * weight.shape[1] ** -0.5)
    return model


def state_dict(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The tensors under the names that save_pretrained gives them: no aliases."""
    second = model.config.model_type == "t5gemma2"
    aliases = ("lm_head.",) if model.config.tie_word_embeddings else ()
    aliases += ("model.decoder.embed_tokens.",) if second else ()
    state = model.state_dict().items()
    return {name: tensor.contiguous() for name, tensor in state if not name.startswith(aliases)}


_SPECIALS = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"]
_TEXTS = """The quick brown fox jumps over the lazy dog. Der schnelle braune Fuchs springt über den Hund.
Write a short story about a house at the end of the street, and what nobody had ever found in there.
Summarize this text: 1234567890   Three   spaces    and more"""


def save_tokenizer(folder: Path, framed: bool = True) -> None:
    """Write a tokenizer as Gemma's is: pairs of pieces with spaces in them, bytes for what is unknown."""
    trained = Tokenizer(BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False)
    trained.train_from_iterator(_TEXTS.split("\n") * 4, trainer)
    learned = json.loads(trained.to_str())["model"]
    in_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = [*_SPECIALS, *in_bytes, *learned["vocab"], "\n", "\n\n"]
    merges = [tuple(pair) for pair in learned["merges"]] + [("\n", "\n")]
    vocab = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    if framed:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<bos> $A", pair="<bos> $A <bos>:1 $B:1", special_tokens=[("<bos>", 2)]
        )
    tokenizer.add_special_tokens(_SPECIALS)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = dict(tokenizer_class="GemmaTokenizer", additional_special_tokens=_SPECIALS[5:])
    settings |= {f"{name}_token": f"<{name}>" for name in ("pad", "eos", "bos", "unk")}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
