"""Small random Hugging Face checkpoints of BART's family, and their torch models."""

import torch
import transformers

# Raw config.json contents as the hub has them. Sizes that can differ do, heads and depths by stack as well.
SMALL = dict(
    vocab_size=61,
    d_model=24,
    encoder_layers=2,
    encoder_attention_heads=2,
    encoder_ffn_dim=40,
    decoder_layers=3,
    decoder_attention_heads=4,
    decoder_ffn_dim=36,
    max_position_embeddings=64,
    dropout=0.1,
    is_encoder_decoder=True,
)
_KEYS = ("activation_function", "scale_embedding", "pad_token_id", "bos_token_id", "eos_token_id")
_KEYS += ("decoder_start_token_id",)


def _raw(kind: str, architecture: str, *values) -> dict:
    named = dict(zip(_KEYS, values, strict=True))
    return SMALL | dict(model_type=kind, architectures=[architecture]) | named


BART = _raw("bart", "BartForConditionalGeneration", "gelu", False, 1, 0, 2, 2)
MBART = _raw("mbart", "MBartForConditionalGeneration", "gelu", True, 1, 0, 2, None)
M2M = _raw("m2m_100", "M2M100ForConditionalGeneration", "relu", True, 1, 0, 2, 2)
MARIAN = _raw("marian", "MarianMTModel", "swish", True, 60, None, 0, 60)
MARIAN |= dict(bad_words_ids=[[60]])
PEGASUS = _raw("pegasus", "PegasusForConditionalGeneration", "relu", True, 0, None, 1, 0)
VARIANTS = {
    "bart": BART,
    "bart, scaled, tanh gelu": BART | dict(scale_embedding=True, activation_function="gelu_new"),
    "mbart": MBART,
    "mbart-50": MBART | dict(activation_function="relu", decoder_start_token_id=2),
    "m2m": M2M,
    "nllb, other padding": M2M | dict(pad_token_id=5, activation_function="swish"),
    "m2m, unscaled": M2M | dict(scale_embedding=False, d_model=28),
    "marian": MARIAN,
    "marian, own vocabularies": MARIAN
    | dict(vocab_size=45, decoder_vocab_size=40, share_encoder_decoder_embeddings=False)
    | dict(pad_token_id=39, decoder_start_token_id=39, bad_words_ids=[[39]]),
    "pegasus": PEGASUS,
}


def torch_model(raw: dict, seed: int = 0) -> torch.nn.Module:
    """A transformers model of the raw config with random weights, every one of them in play."""
    kind = getattr(transformers, raw["architectures"][0])
    torch.manual_seed(seed)
    model = kind(kind.config_class(**raw)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "embed_positions" in name and raw["model_type"] in ("marian", "pegasus"):
                continue  # sinusoids
            if weight.dim() == 1:
                weight.normal_(1 if "norm" in name and name.endswith("weight") else 0, 0.3)
            elif "embed" not in name and "shared" not in name and "lm_head" not in name:
                weight.normal_(0, weight.shape[1] ** -0.5)
            else:
                weight.normal_(0, 1 / 24**0.5 if raw.get("scale_embedding") else 1)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_(0, 0.5)
    return model


def state_dict(model: torch.nn.Module, form: str = "new") -> dict[str, torch.Tensor]:
    """The tensors under the names of checkpoints on the hub: "new", what transformers saves today;
    "old", with every alias and with what is not read; "bare", without the prefix "model."."""
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    tied = {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"}
    separate = "model.shared.weight" not in state
    if form != "old":
        tied = {"lm_head.weight"} if separate else tied | {"lm_head.weight"}
        state = {name: tensor for name, tensor in state.items() if name not in tied}
    else:
        state = {name: tensor.clone() for name, tensor in state.items()}
        state |= {f"model.{stack}.version": torch.tensor([3.0]) for stack in ("encoder", "decoder")}
        if model.config.model_type == "m2m_100":
            state["model.encoder.embed_positions.weights"] = torch.zeros(66, 24)
    if form == "bare":
        state = {name.removeprefix("model."): tensor for name, tensor in state.items()}
    return state
