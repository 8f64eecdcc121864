"""Arguments of small models, for each of mlx-lm's architectures."""

VOCAB, LAYERS, WINDOW = 61, 4, 6
SLIDING = ["sliding_attention", "full_attention"] * (LAYERS // 2)

# By field of a model's ModelArgs, for every architecture that has it. All small, few of them equal.
COMMON = dict(
    vocab_size=VOCAB,
    num_vocab=VOCAB,
    embedding_size=VOCAB,
    vocab_size_per_layer_input=VOCAB,
    max_position_embeddings=256,
    n_positions=256,
    n_ctx=256,
    max_seq_len=256,
    model_max_length=256,
    original_max_position_embeddings=256,
    rope_theta=10000.0,
    rms_norm_eps=1e-5,
    layer_norm_eps=1e-5,
    layernorm_epsilon=1e-5,
    layer_norm_epsilon=1e-5,
    norm_epsilon=1e-5,
    norm_eps=1e-5,
    hc_eps=1e-5,
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers"), LAYERS),
    num_transformer_layers=LAYERS,
    **dict.fromkeys(("hidden_size", "hidden_dim", "d_model", "n_embd", "model_dim"), 32),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_head", "n_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "kv_channels", "hidden_size_per_head"), 8),
    **dict.fromkeys(
        ("intermediate_size", "n_inner", "ffn_hidden_size", "ff_intermediate_size"), 48
    ),
    **dict.fromkeys(("moe_intermediate_size", "expert_ffn_hidden_size"), 24),
    **dict.fromkeys(("shared_expert_intermediate_size", "shared_intermediate_size"), 40),
    **dict.fromkeys(("intermediate_size_mlp", "block_ff_dim", "block_dim"), 32),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    moe_num_experts=4,
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"), 2),
    moe_top_k=2,
    **dict.fromkeys(("num_shared_experts", "num_shared_expert", "n_shared_experts"), 1),
    moe_num_shared_experts=1,
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group", "n_groups"), 1),
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers"), 1),
    **dict.fromkeys(("moe_layer_freq", "decoder_sparse_step", "moe_layer_interval"), 1),
    routed_scaling_factor=1.0,
    norm_topk_prob=True,
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank"), 12),
    **dict.fromkeys(("qk_nope_head_dim", "linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim"), 4),
    v_head_dim=10,
    query_pre_attn_scalar=8,
    **dict.fromkeys(("sliding_window", "sliding_window_size", "window_size"), WINDOW),
    **dict.fromkeys(("attention_window_size", "loop_window_size"), WINDOW),
    sliding_window_pattern=2,
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_bias", "tie_word_embeddings"), False),
    **dict.fromkeys(("use_qkv_bias", "use_conv_bias", "conv_bias", "mamba_proj_bias"), True),
    **dict.fromkeys(("use_qk_norm", "qk_norm", "post_norm"), True),
    **dict.fromkeys(("attention_multiplier", "embedding_multiplier"), 1.0),
    **dict.fromkeys(("residual_multiplier", "logits_scaling", "logit_scale"), 1.0),
    partial_rotary_factor=0.5,
    rotary_pct=0.5,
    rotary_emb_base=10000,
    **dict.fromkeys(("scale_depth", "scale_emb", "dim_model_base"), 1.0),
    mlp_only_layers=[],
    scoring_func="sigmoid",
    **dict.fromkeys(("state_size", "ssm_state_size", "mamba_d_state", "time_step_rank"), 8),
    **dict.fromkeys(("mamba_head_dim", "mamba_d_head"), 8),
    **dict.fromkeys(("mamba_num_heads", "mamba_n_heads"), 8),
    mamba_d_ssm=64,
    mamba_n_groups=1,
    **dict.fromkeys(("conv_kernel", "mamba_d_conv", "conv_L_cache", "conv1d_width"), 3),
    **dict.fromkeys(("linear_conv_kernel_dim", "short_conv_kernel_size"), 3),
    mamba_expand=2,
    mamba_conv_bias=True,
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 4),
    time_step_limit=(0.0, 100.0),
    **dict.fromkeys(("index_n_heads", "index_head_dim"), 8),
    index_topk=16,
    layer_group_size=2,
    group_norm_size=1,
)

_YARN = dict(rope_type="yarn", type="yarn", factor=2.0, original_max_position_embeddings=128)
_LLAMA4 = dict(rope_type="default", rope_theta=10000.0, llama_4_scaling_beta=0.1)
_LLAMA4["original_max_position_embeddings"] = 16
_KDA = dict(kda_layers=[1, 2], full_attn_layers=[3, 4], num_heads=4, head_dim=8)
_KDA["short_conv_kernel_size"] = 3
_ALPHA = dict(type="dynamic", factor=1.0, alpha=10.0)
_NO_YARN = dict(rope_theta=10000.0, rope_type="default")
_BY_TYPE = dict(full_attention=_NO_YARN, sliding_attention=_NO_YARN)


def _text(model_type: str, **changes) -> dict:
    """For a model of text and images: the architecture that its text is of."""
    return dict(
        text_config=COMMON | MORE.get(model_type, {}) | dict(model_type=model_type) | changes
    )


# What else an architecture needs, under the name of its file.
MORE: dict[str, dict] = {
    "afm7": dict(num_layers=3, num_kv_reuse_layers=1, hidden_dim_scale_factor=2.0),
    "afmoe": dict(layer_types=SLIDING),
    "baichuan_m1": dict(sliding_window_layers=[1, 3], conv_window=2),
    "dbrx": dict(
        ffn_config=dict(ffn_hidden_size=48, moe_num_experts=4, moe_top_k=2),
        attn_config=dict(kv_n_heads=2, clip_qkv=8.0, rope_theta=10000.0),
    ),
    "deepseek_v2": dict(rope_scaling=_YARN, topk_method="greedy"),
    "exaone4": dict(rope_scaling=None, sliding_window_pattern="LG"),
    "exaone_moe": dict(layer_types=SLIDING, is_moe_layer=[False, True, True, True]),
    "gear": dict(layer_types=SLIDING),
    "gemma3_text": dict(num_key_value_heads=1),
    "gemma4_text": dict(
        global_head_dim=16,
        hidden_size_per_layer_input=8,
        num_kv_shared_layers=2,
        layer_types=SLIDING,
        num_experts=None,
    ),
    "glm4_moe": dict(rope_scaling=None),
    "glm_moe_dsa": dict(topk_method="noaux_tc", rope_parameters=_NO_YARN),
    "gpt_oss": dict(layer_types=SLIDING),
    "granitemoehybrid": dict(layer_types=["mamba", "attention"] * 2),
    "hunyuan": dict(use_mixed_mlp_moe=True, use_cla=True, cla_share_factor=2, rope_scaling=_ALPHA),
    "jamba": dict(
        attn_layer_offset=1, attn_layer_period=2, expert_layer_offset=1, expert_layer_period=2
    ),
    "kimi_linear": dict(linear_attn_config=_KDA),
    "lfm2": dict(
        block_multiple_of=8,
        block_ffn_dim_multiplier=1.0,
        block_auto_adjust_ff_dim=False,
        full_attn_idxs=[1, 3],
    ),
    "lfm2_moe": dict(use_expert_bias=True, full_attn_idxs=[1, 3]),
    "lille-130m": dict(block_size=256, n_embd=64, rope_theta=10000.0),
    "llama4_text": dict(no_rope_layers=[1, 0, 1, 0]),
    "longcat_flash": dict(
        attention_method="MLA",
        zero_expert_type="identity",
        zero_expert_num=1,
        mla_scale_q_lora=True,
        mla_scale_kv_lora=True,
    ),
    "longcat_flash_ngram": dict(
        zero_expert_num=1, mla_scale_q_lora=True, mla_scale_kv_lora=True, ngram_vocab_size_ratio=2
    ),
    "mellum": dict(layer_types=SLIDING, rope_parameters=_BY_TYPE),
    "mimo_v2_flash": dict(
        hybrid_layer_pattern=[1, 0, 1, 0],
        moe_layer_freq=[0, 1, 1, 1],
        add_swa_attention_sink_bias=True,
        add_full_attention_sink_bias=False,
        topk_method="noaux_tc",
        swa_rope_theta=1000.0,
        swa_num_attention_heads=4,
        swa_num_key_value_heads=2,
        swa_head_dim=8,
        swa_v_head_dim=6,
    ),
    "minicpm3": dict(rope_scaling=dict(short_factor=1.0, long_factor=1.0)),
    "ministral3": dict(rope_parameters=_LLAMA4, layer_types=SLIDING),
    "mistral4": dict(rope_parameters=_LLAMA4, head_dim=None),
    "muse_glimmer": dict(layer_types=SLIDING),
    "nemotron": dict(hidden_act="relu2"),
    "nemotron-nas": dict(
        block_configs=[dict(attention=dict(n_heads_in_group=2), ffn=dict(ffn_mult=1.0))] * LAYERS
    ),
    "nemotron_h": dict(hybrid_override_pattern=list("M*-M")),
    "olmo": dict(mlp_hidden_size=96),
    "olmo3": dict(layer_types=SLIDING),
    "olmo_hybrid": dict(
        linear_allow_neg_eigval=True, layer_types=["linear_attention", "full_attention"] * 2
    ),
    "openelm": dict(
        ffn_dim_divisor=8,
        num_query_heads=[4, 4, 6, 6],
        num_kv_heads=[2, 2, 3, 3],
        ffn_multipliers=[1.0, 1.5, 2.0, 2.0],
    ),
    "phi3small": dict(dense_attention_every_n_layers=2, gegelu_limit=20.0, vocab_size=100352),
    "plamo": dict(n_shared_head=2),
    "prism_hadamard_qwen35": dict(),
    "recurrent_gemma": dict(logits_soft_cap=30.0, block_types=["recurrent", "attention"]),
    "rwkv7": dict(a_low_rank_dim=8, v_low_rank_dim=8, gate_low_rank_dim=8, decay_low_rank_dim=8),
    "spark2_5": dict(rope_parameters=_BY_TYPE, layer_types=SLIDING),
    "step3p5": dict(
        num_attention_groups=2, share_expert_dim=24, layer_types=SLIDING, moe_layers_enum="2,3"
    ),
}
MORE |= {
    "gemma3": _text("gemma3_text"),
    "gemma3n": _text(
        "gemma3n",
        num_kv_shared_layers=2,
        final_logit_softcapping=30.0,
        rope_local_base_freq=1000.0,
        layer_types=SLIDING,
        activation_sparsity_pattern=[0.9, 0.0, 0.0, 0.0],
        hidden_size_per_layer_input=8,
        altup_num_inputs=2,
        altup_coef_clip=120.0,
        altup_correct_scale=True,
        altup_active_idx=0,
        laurel_rank=4,
    ),
    "gemma4": _text("gemma4_text"),
    "kimi_k25": _text("deepseek_v3"),
    "kimi_k3": _text("kimi_linear", activation_situ_beta=1.0, attn_res_block_size=2),
    "kimi_vl": _text("deepseek_v3"),
    "lfm2-vl": _text("lfm2"),
    "llama4": _text(
        "llama4_text",
        attention_chunk_size=8,
        interleave_moe_layer_step=2,
        rope_scaling=None,
        num_experts_per_tok=1,
    ),
    "minimax_m3_vl": _text("minimax", dense_intermediate_size=48, moe_layer_freq=[0, 1, 1, 1]),
    "mistral3": _text("llama"),
    "muse_spark": _text(
        "muse_spark",
        post_norm_eps=1e-5,
        rope_parameters=_NO_YARN,
        layer_rope_theta=[10000.0, 0.0, 10000.0, 0.0],
        layer_types=SLIDING,
        final_logit_softcapping=20.0,
        output_multiplier=0.5,
        moe_hidden_size=24,
        num_shared_experts=0,
    ),
    "pixtral": _text("llama"),
    "qwen2_vl": _text("qwen2"),
    "qwen3_5": _text("qwen3_5", full_attention_interval=2, num_experts=0),
    "qwen3_5_moe": _text("qwen3_5", full_attention_interval=2),
    "qwen3_vl": _text("qwen3"),
    "qwen3_vl_moe": _text("qwen3_moe"),
}
