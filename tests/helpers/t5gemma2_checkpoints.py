"""Config.json contents of T5Gemma 2, vision and all; their torch models: t5gemma_checkpoints."""

from helpers.t5gemma_checkpoints import ENCODER, FULL, SLIDING

# Windows are shorter than the texts, local and global layers of different rotary positions.
TEXT = {k: v for k, v in ENCODER.items() if "softcapping" not in k} | dict(
    sliding_window=5,
    layer_types=[SLIDING, FULL, SLIDING],
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
VISION = dict(model_type="siglip_vision_model", hidden_size=8, intermediate_size=16)
VISION |= dict(num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4)


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
