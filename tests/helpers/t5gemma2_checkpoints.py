"""Small random T5Gemma 2 checkpoints, vision and all, and their torch models."""

import torch
import transformers

from helpers.t5gemma_checkpoints import FULL, SLIDING

# Windows are shorter than the texts, local and global layers of different rotary positions.
TEXT = dict(
    vocab_size=61,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=10,
    query_pre_attn_scalar=7,
    sliding_window=5,
    layer_types=[SLIDING, FULL, SLIDING],
    max_position_embeddings=64,
    pad_token_id=0,
    eos_token_id=1,
    bos_token_id=2,
    rope_parameters={
        FULL: dict(rope_type="linear", factor=8.0, rope_theta=1e4),
        SLIDING: dict(rope_type="default", rope_theta=100.0),
    },
)
DECODER = TEXT | dict(
    intermediate_size=36,
    num_hidden_layers=4,
    num_attention_heads=4,
    head_dim=6,
    sliding_window=4,
    layer_types=[SLIDING, SLIDING, FULL, SLIDING],
    max_position_embeddings=500,
)
VISION = dict(
    model_type="siglip_vision_model",
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    image_size=8,
    patch_size=4,
)


def raw_config(decoder: dict | None = None, **both) -> dict:
    """A config.json with these changes to the decoder, and to both stacks."""
    text = TEXT | both
    return dict(
        model_type="t5gemma2",
        architectures=["T5Gemma2ForConditionalGeneration"],
        encoder=dict(text_config=text, vision_config=VISION, mm_tokens_per_image=4),
        decoder=DECODER | both | (decoder or {}),
    )


VARIANTS = {
    "t5gemma2": raw_config(),
    "capped, even window": raw_config(
        {"final_logit_softcapping": 3.0}, sliding_window=6, attn_logit_softcapping=0.1
    ),
    "by pattern": raw_config(
        layer_types=None, sliding_window_pattern=2, rope_parameters=None, attention_bias=True
    ),
}


def torch_config(raw: dict) -> transformers.T5Gemma2Config:
    return transformers.T5Gemma2Config(**raw)


def torch_model(raw: dict, seed: int = 0) -> torch.nn.Module:
    """A transformers model of the raw config with random weights, every one of the text's in play."""
    torch.manual_seed(seed)
    model = transformers.T5Gemma2ForConditionalGeneration(torch_config(raw)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                weight.normal_(0, 0.3)
            elif "embed_tokens.weight" in name:  # small beside what layers add
                weight.normal_(0, 0.1 * weight.shape[1] ** -0.5)
            elif "out_proj" in name:
                weight.normal_(0, weight.shape[1] ** -0.5)
            elif weight.dim() == 2:
                weight.normal_(0, 2 * weight.shape[1] ** -0.5)
    return model


def random_model():
    from helpers.pairs import both

    return both(VARIANTS["t5gemma2"])[1]


def state_dict(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The tensors under the names that save_pretrained gives them: no aliases."""
    aliases = ("lm_head.", "model.decoder.embed_tokens.")
    state = model.state_dict().items()
    return {name: tensor.contiguous() for name, tensor in state if not name.startswith(aliases)}
