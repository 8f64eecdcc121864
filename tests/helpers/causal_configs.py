"""Arguments of small models, for each of mlx-lm's architectures."""

from ast import literal_eval
from typing import Any

VOCAB, LAYERS, WINDOW = 61, 4, 6
SLIDING = ["sliding_attention", "full_attention"] * (LAYERS // 2)

# Values, and the fields of models' ModelArgs that have them. All small, few of them equal.
_FIELDS = f"""
{VOCAB} vocab_size num_vocab embedding_size vocab_size_per_layer_input
256 max_position_embeddings n_positions n_ctx max_seq_len model_max_length
256 original_max_position_embeddings block_size
1e-05 rms_norm_eps layer_norm_eps layernorm_epsilon layer_norm_epsilon norm_epsilon norm_eps hc_eps
{LAYERS} num_hidden_layers num_layers n_layer n_layers num_transformer_layers
4 num_attention_heads num_heads n_head n_heads num_experts num_local_experts n_routed_experts
4 moe_num_experts qk_rope_head_dim rotary_dim linear_num_key_heads linear_num_value_heads
4 laurel_rank swa_num_attention_heads
32 hidden_size hidden_dim d_model n_embd model_dim intermediate_size_mlp block_ff_dim block_dim
2 num_key_value_heads num_kv_heads n_kv_heads num_experts_per_tok num_experts_per_token moe_topk
2 moe_k moe_top_k sliding_window_pattern mamba_expand layer_group_size altup_num_inputs
2 attn_layer_period attn_res_block_size cla_share_factor conv_window dense_attention_every_n_layers
2 expert_layer_period interleave_moe_layer_step n_shared_head ngram_vocab_size_ratio
2 num_attention_groups num_kv_shared_layers swa_num_key_value_heads
8 head_dim kv_channels hidden_size_per_head qk_nope_head_dim linear_key_head_dim
8 linear_value_head_dim query_pre_attn_scalar state_size ssm_state_size mamba_d_state time_step_rank
8 mamba_head_dim mamba_d_head mamba_num_heads mamba_n_heads index_n_heads index_head_dim
8 a_low_rank_dim attention_chunk_size block_multiple_of decay_low_rank_dim ffn_dim_divisor
8 gate_low_rank_dim hidden_size_per_layer_input swa_head_dim v_low_rank_dim
48 intermediate_size n_inner ffn_hidden_size ff_intermediate_size dense_intermediate_size
24 moe_intermediate_size expert_ffn_hidden_size moe_hidden_size share_expert_dim
40 shared_expert_intermediate_size shared_intermediate_size
1 num_shared_experts num_shared_expert n_shared_experts moe_num_shared_experts n_group topk_group
1 num_expert_group n_groups first_k_dense_replace num_dense_layers moe_layer_freq
1 decoder_sparse_step moe_layer_interval mamba_n_groups group_norm_size attn_layer_offset
1 expert_layer_offset num_kv_reuse_layers zero_expert_num
1.0 routed_scaling_factor attention_multiplier embedding_multiplier residual_multiplier
1.0 logits_scaling logit_scale scale_depth scale_emb dim_model_base activation_situ_beta
1.0 block_ffn_dim_multiplier
True norm_topk_prob use_qkv_bias use_conv_bias conv_bias mamba_proj_bias use_qk_norm qk_norm
True post_norm mamba_conv_bias add_swa_attention_sink_bias altup_correct_scale
True linear_allow_neg_eigval mla_scale_kv_lora mla_scale_q_lora use_cla use_expert_bias
True use_mixed_mlp_moe
12 kv_lora_rank q_lora_rank
{WINDOW} sliding_window sliding_window_size window_size attention_window_size loop_window_size
False attention_bias mlp_bias use_bias tie_word_embeddings add_full_attention_sink_bias
False block_auto_adjust_ff_dim
0.5 partial_rotary_factor rotary_pct
3 conv_kernel mamba_d_conv conv_L_cache conv1d_width linear_conv_kernel_dim short_conv_kernel_size
10 v_head_dim
16 index_topk global_head_dim
64 mamba_d_ssm
10000 rotary_emb_base
10000.0 rope_theta
[] mlp_only_layers
'sigmoid' scoring_func
(0.0,100.0) time_step_limit
[0.9,0.0,0.0,0.0] activation_sparsity_pattern
0 altup_active_idx
120.0 altup_coef_clip
'MLA' attention_method
['recurrent','attention'] block_types
[1.0,1.5,2.0,2.0] ffn_multipliers
[1,3] full_attn_idxs sliding_window_layers
20.0 gegelu_limit
2.0 hidden_dim_scale_factor
[1,0,1,0] hybrid_layer_pattern
['M','*','-','M'] hybrid_override_pattern
[False,True,True,True] is_moe_layer
30.0 logits_soft_cap
96 mlp_hidden_size
'2,3' moe_layers_enum
[4,4,6,6] num_query_heads
1000.0 swa_rope_theta
6 swa_v_head_dim
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
    "afm7": dict(num_layers=3),
    "afmoe": dict(layer_types=SLIDING),
    "dbrx": dict(
        ffn_config=dict(ffn_hidden_size=48, moe_num_experts=4, moe_top_k=2),
        attn_config=dict(kv_n_heads=2, clip_qkv=8.0, rope_theta=10000.0),
    ),
    "deepseek_v2": dict(rope_scaling=_YARN, topk_method="greedy"),
    "exaone4": dict(rope_scaling=None, sliding_window_pattern="LG"),
    "exaone_moe": dict(layer_types=SLIDING),
    "gear": dict(layer_types=["conv_mixer", "sliding_attention"] * 2),
    "gemma3_text": dict(num_key_value_heads=1),
    "gemma4_text": dict(layer_types=SLIDING, num_experts=None),
    "glm4_moe": dict(rope_scaling=None),
    "glm_moe_dsa": dict(topk_method="noaux_tc", rope_parameters=_NO_YARN),
    "gpt_oss": dict(layer_types=SLIDING),
    "granitemoehybrid": dict(layer_types=["mamba", "attention"] * 2),
    "hunyuan": dict(rope_scaling=_ALPHA),
    "kimi_linear": dict(linear_attn_config=_KDA),
    "lille-130m": dict(n_embd=64, rope_theta=10000.0),
    "llama4_text": dict(no_rope_layers=[1, 0, 1, 0]),
    "longcat_flash": dict(zero_expert_type="identity"),
    "mellum": dict(layer_types=SLIDING, rope_parameters=_BY_TYPE),
    "mimo_v2_flash": dict(moe_layer_freq=[0, 1, 1, 1], topk_method="noaux_tc"),
    "minicpm3": dict(rope_scaling=dict(short_factor=1.0, long_factor=1.0)),
    "ministral3": dict(rope_parameters=_LLAMA4, layer_types=SLIDING),
    "mistral4": dict(rope_parameters=_LLAMA4, head_dim=None),
    "muse_glimmer": dict(layer_types=SLIDING),
    "nemotron": dict(hidden_act="relu2"),
    "nemotron-nas": dict(
        block_configs=[dict(attention=dict(n_heads_in_group=2), ffn=dict(ffn_mult=1.0))] * LAYERS
    ),
    "olmo3": dict(layer_types=SLIDING),
    "olmo_hybrid": dict(layer_types=["linear_attention", "full_attention"] * 2),
    "openelm": dict(num_kv_heads=[2, 2, 3, 3]),
    "phi3small": dict(vocab_size=100352),
    "spark2_5": dict(rope_parameters=_BY_TYPE, layer_types=SLIDING),
    "step3p5": dict(layer_types=SLIDING),
}
MORE |= {
    "gemma3": _text("gemma3_text"),
    "gemma3n": _text(
        "gemma3n", final_logit_softcapping=30.0, rope_local_base_freq=1000.0, layer_types=SLIDING
    ),
    "gemma4": _text("gemma4_text"),
    "kimi_k25": _text("deepseek_v3"),
    "kimi_k3": _text("kimi_linear"),
    "kimi_vl": _text("deepseek_v3"),
    "lfm2-vl": _text("lfm2"),
    "llama4": _text("llama4_text", rope_scaling=None, num_experts_per_tok=1),
    "minimax_m3_vl": _text("minimax", moe_layer_freq=[0, 1, 1, 1]),
    "mistral3": _text("llama"),
    "muse_spark": _text(
        "muse_spark",
        post_norm_eps=1e-5,
        rope_parameters=_NO_YARN,
        layer_rope_theta=[10000.0, 0.0, 10000.0, 0.0],
        layer_types=SLIDING,
        final_logit_softcapping=20.0,
        output_multiplier=0.5,
        num_shared_experts=0,
    ),
    "pixtral": _text("llama"),
    "qwen2_vl": _text("qwen2"),
    "qwen3_5": _text("qwen3_5", full_attention_interval=2, num_experts=0),
    "qwen3_5_moe": _text("qwen3_5", full_attention_interval=2),
    "qwen3_vl": _text("qwen3"),
    "qwen3_vl_moe": _text("qwen3_moe"),
}
