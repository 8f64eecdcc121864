"""Small random OPT checkpoints in the hub's layout, and their torch models."""

import json

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

SMALL = dict(model_type="opt", architectures=["OPTForCausalLM"], vocab_size=300)
SMALL |= dict(hidden_size=24, ffn_dim=40, num_hidden_layers=3, num_attention_heads=4)
SMALL |= dict(max_position_embeddings=64, word_embed_proj_dim=24)
SMALL |= dict(pad_token_id=1, bos_token_id=2, eos_token_id=2)
VARIANTS = {
    "opt-125m": SMALL | dict(do_layer_norm_before=True),
    "opt-350m": SMALL | dict(do_layer_norm_before=False, word_embed_proj_dim=16),
    "old": SMALL | dict(_remove_final_layer_norm=True),
    "galactica": SMALL
    | dict(enable_bias=False, layer_norm_elementwise_affine=False, activation_function="gelu"),
    "untied": SMALL | dict(tie_word_embeddings=False),
}


def torch_model(raw: dict) -> torch.nn.Module:
    """A transformers model with random weights, every one of them in play."""
    torch.manual_seed(0)
    model = transformers.OPTForCausalLM(transformers.OPTConfig(**raw)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():  # a head of its own among them
            scale = 0.3 if weight.dim() == 1 or "embed" in name else weight.shape[1] ** -0.5
            weight.normal_(1.0 if "norm.weight" in name else 0.0, scale)
    return model


def write_bpe(folder) -> None:
    """OPT's tokenizer files: GPT-2's kind, with </s> put first."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    how = dict(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    trainer = trainers.BpeTrainer(
        vocab_size=290, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], **how
    )
    bpe.train_from_iterator(["the cat sat on the mat, and the dog saw the cat"] * 5, trainer)
    bpe.model.save(str(folder))
    names = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "</s>") | {"pad_token": "<pad>"}
    settings = names | dict(add_bos_token=True, tokenizer_class="GPT2Tokenizer")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "special_tokens_map.json").write_text(json.dumps(names))
