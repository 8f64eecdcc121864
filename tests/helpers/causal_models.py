"""Small random models of mlx-lm's architectures, and what they write here and with mlx-lm alone."""

import dataclasses
import importlib
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from unittest.mock import patch

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_map_with_path
from speculative import rounds
from speculative.drafting import CombinedDrafter, InputDrafter, ModelDrafter, padded
from speculative.options import Options

from families.causal import CausalModel

VOCAB, LAYERS, WINDOW = 61, 4, 6
SLIDING = ["sliding_attention", "full_attention"] * (LAYERS // 2)

# By field of a model's ModelArgs, for every architecture that has it. All small, few of them equal.
_COMMON = dict(
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
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_hidden_size", "ff_intermediate_size"), 48),
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

# What else an architecture needs, under the name of its file.
_MORE: dict[str, dict] = {
    "afm7": dict(num_layers=3, num_kv_reuse_layers=1, hidden_dim_scale_factor=2.0),
    "gemma3_text": dict(num_key_value_heads=1),
    "gpt_oss": dict(layer_types=SLIDING),
    "olmo3": dict(layer_types=SLIDING),
}


def build(name: str, seed: int = 0, **changes) -> nn.Module:
    """mlx-lm's model of the file models/<name>.py, with random weights that are all in play."""
    with redirect_stdout(StringIO()):
        module = importlib.import_module(f"mlx_lm.models.{name}")
    values = _MORE.get(name, {}) | changes
    model = module.Model(module.ModelArgs.from_dict(arguments(module, **values)))
    return randomised(model, seed)


def arguments(module, **changes) -> dict:
    fields = {field.name for field in dataclasses.fields(module.ModelArgs)}
    small = {key: value for key, value in _COMMON.items() if key in fields}
    return dict(model_type=module.__name__.rpartition(".")[2]) | small | changes


def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    rng = np.random.default_rng(seed)

    def draw(name: str, weight: mx.array) -> mx.array:
        scale = 0.2 if weight.ndim < 2 else 1.0 if "embed" in name else weight.shape[-1] ** -0.5
        mean = 1.0 if weight.ndim < 2 and "bias" not in name else 0.0
        return mx.array(rng.normal(mean, scale, weight.shape).astype(np.float32))

    model.eval()
    model.update(tree_map_with_path(draw, model.parameters()))
    return model


def disturbed(model: nn.Module, twin: nn.Module, noise: float, seed: int = 1) -> nn.Module:
    """`twin`, of the same architecture, with the model's weights and relative noise on each."""
    rng = np.random.default_rng(seed)

    def shift(name: str, weight: mx.array) -> mx.array:
        scale = noise * float(weight.std())
        return weight + mx.array(rng.normal(0, scale, weight.shape).astype(np.float32))

    twin.update(tree_map_with_path(shift, model.parameters()))
    return twin


def alone(model: nn.Module, prompt: Sequence[int], max_tokens: int) -> list[int]:
    """mlx-lm's own greedy tokens."""
    from mlx_lm.generate import generate_step

    steps = generate_step(mx.array(prompt), model, max_tokens=max_tokens)
    return [int(token) for token, _ in steps]


class _Decoding(rounds.Decoding):
    """The loop, for rows whose tokens begin with their prompt."""

    def _admit(self, rows):
        self.sampler = self.options.sampler([row.seed for row in self.rows])
        for row in rows:
            row.tokens = self.model.prefix(row.source)
        tokens, mask = padded([row.source for row in rows], self.model.config.pad_token_id)
        return mx.array(tokens), mask

    def _encoded(self, rows):
        self.cache.wait()


class _Lookup(InputDrafter):
    """Prompt lookup, for rows whose tokens begin with their prompt."""

    def offers(self, rows):
        sizes = [len(copier.text) - copier.output_size for copier in self._copiers]
        return super().offers([r and [0, *r[n:]] for r, n in zip(rows, sizes, strict=True)])


def drafters(models: dict[str, CausalModel]) -> dict:
    """Every kind of drafter, by name; a draft model under its own."""
    found = {name: ModelDrafter(model) for name, model in models.items()}
    found["lookup"] = _Lookup()
    first = next(iter(models.values()))
    return found | {"both": CombinedDrafter(_Lookup(), ModelDrafter(first))}


def decode(
    model: CausalModel, drafter, prompts: Sequence, batch_size: int, **options
) -> list[rounds.Row]:
    """The finished rows of the prompts, in their order; a finished row's place goes to the next."""
    rows = [rounds.Row(list(prompt), str(i).encode()) for i, prompt in enumerate(prompts)]
    with patch.object(rounds, "Decoding", _Decoding):
        for _ in rounds.decode(model, drafter, rows, Options(**options), batch_size):
            pass
    return rows


def written(row: rounds.Row) -> list[int]:
    """What was generated of a row's tokens."""
    return row.tokens[len(row.source) :]


def prompts(count: int, longest: int, seed: int = 0) -> list[list[int]]:
    """Random prompts of 1 to `longest` tokens."""
    rng = np.random.default_rng(seed)
    lengths = np.linspace(1, longest, count).astype(int)
    rng.shuffle(lengths)
    return [rng.integers(3, VOCAB, n).tolist() for n in lengths]


def architectures() -> list[str]:
    """The names of mlx-lm's files that define a model."""
    from pathlib import Path

    import mlx_lm.models

    files = sorted(Path(mlx_lm.models.__path__[0]).glob("*.py"))
    return [file.stem for file in files if "class ModelArgs" in file.read_text()]
