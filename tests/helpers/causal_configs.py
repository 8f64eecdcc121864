"""Arguments of small models, for each of mlx-lm's architectures."""

from ast import literal_eval
from typing import Any

VOCAB, LAYERS, WINDOW = 61, 4, 6
SLIDING = ["sliding_attention", "full_attention"] * (LAYERS // 2)

# Values, and the fields of models' ModelArgs that have them. All small, few of them equal.
_FIELDS = f"""
{VOCAB} vocab_size num_vocab embedding_size vocab_size_per_layer_input
256 max_position_embeddings n_positions n_ctx max_seq_len model_max_length
256 original_max_position_embeddings
1e-05 rms_norm_eps layer_norm_eps layernorm_epsilon layer_norm_epsilon norm_epsilon norm_eps hc_eps
{LAYERS} num_hidden_layers num_layers n_layer n_layers num_transformer_layers
4 num_attention_heads num_heads n_head n_heads num_experts num_local_experts n_routed_experts
4 moe_num_experts qk_rope_head_dim rotary_dim linear_num_key_heads linear_num_value_heads
32 hidden_size hidden_dim d_model n_embd model_dim intermediate_size_mlp block_ff_dim block_dim
2 num_key_value_heads num_kv_heads n_kv_heads num_experts_per_tok num_experts_per_token moe_topk
2 moe_k moe_top_k sliding_window_pattern mamba_expand layer_group_size
8 head_dim kv_channels hidden_size_per_head qk_nope_head_dim linear_key_head_dim
8 linear_value_head_dim query_pre_attn_scalar state_size ssm_state_size mamba_d_state time_step_rank
8 mamba_head_dim mamba_d_head mamba_num_heads mamba_n_heads index_n_heads index_head_dim
48 intermediate_size n_inner ffn_hidden_size ff_intermediate_size
24 moe_intermediate_size expert_ffn_hidden_size
40 shared_expert_intermediate_size shared_intermediate_size
1 num_shared_experts num_shared_expert n_shared_experts moe_num_shared_experts n_group topk_group
1 num_expert_group n_groups first_k_dense_replace num_dense_layers moe_layer_freq
1 decoder_sparse_step moe_layer_interval mamba_n_groups group_norm_size
1.0 routed_scaling_factor attention_multiplier embedding_multiplier residual_multiplier
1.0 logits_scaling logit_scale scale_depth scale_emb dim_model_base
True norm_topk_prob use_qkv_bias use_conv_bias conv_bias mamba_proj_bias use_qk_norm qk_norm
True post_norm mamba_conv_bias
12 kv_lora_rank q_lora_rank
{WINDOW} sliding_window sliding_window_size window_size attention_window_size loop_window_size
False attention_bias mlp_bias use_bias tie_word_embeddings
0.5 partial_rotary_factor rotary_pct
3 conv_kernel mamba_d_conv conv_L_cache conv1d_width linear_conv_kernel_dim short_conv_kernel_size
10 v_head_dim
16 index_topk
64 mamba_d_ssm
10000 rotary_emb_base
10000.0 rope_theta
[] mlp_only_layers
'sigmoid' scoring_func
(0.0,100.0) time_step_limit
"""
COMMON: dict[str, Any] = {
    name: literal_eval(value)
    for value, *names in map(str.split, _FIELDS.strip().splitlines())
    for name in names
}

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
