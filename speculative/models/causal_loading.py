"""Decoder-only models from files, through mlx-lm, which takes seconds to import: only when a model needs it."""

import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten
from tokenizers import Tokenizer

from speculative.checkpoints.folder import MLX_LMS_ADAPTER, read_json
from speculative.checkpoints.weights import Quantization
from speculative.common.errors import InputError, first_line
from speculative.models.causal import CausalModel
from speculative.models.causal_check import check_cache
from speculative.models.causal_positions import flatten_rope_keys, max_positions, set_positions
from speculative.models.contract import common_prefix
from speculative.models.mlx_lm_folders import mlx_lm
from speculative.models.ram import load_weights
from speculative.models.ranks import Ranks
from speculative.models.registry import check_head, model_type
from speculative.text.generation import GenerationDefaults
from speculative.text.text_side import ChatTemplate, Prompt, TextSide
from speculative.text.translation_prompt import translation_of


@contextmanager
def _mlx_lm_for(name: object, task: str) -> Iterator[Any]:
    """Yields mlx_lm.utils, which then prints to stderr. InputError in one line for whatever is raised."""
    utils = mlx_lm()
    load_config = utils.load_config

    def with_positions(folder: Path) -> dict:
        raw = load_config(folder)
        check_head(raw)
        return flatten_rope_keys(raw)

    utils.load_config = with_positions
    try:
        with redirect_stdout(sys.stderr):
            yield utils
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    except (Exception, SystemExit) as error:  # one of its architectures ends the process
        raise InputError(f"{name}: mlx-lm cannot {task} it: {first_line(error)}") from None
    finally:
        utils.load_config = load_config


def load(
    name: str, folder: Path, group: mx.distributed.Group | None = None, split: bool = True
) -> tuple[CausalModel, Tokenizer]:
    """The model and the tokenizer of a folder that `is_mlx_lm_folder`, as loading.load."""
    ranks = Ranks(group)
    split = split and ranks.size > 1
    if group:
        ranks.check_folder(folder, "mlx-lm")

    def load_all() -> tuple:
        with _mlx_lm_for(folder, "load") as utils:
            model, raw = utils.load_model(folder, lazy=True)
            if split:
                _shard(model, raw, group)
            else:
                load_weights(name, folder, dict(tree_flatten(model.parameters())), mx.eval)
            set_positions(model, raw)
            chat = utils.load_tokenizer(folder, eos_token_ids=raw.get("eos_token_id"))
            file = folder / "chat_template.json"  # transformers reads it for models that see too
            if not chat.has_chat_template and file.exists():
                settings = {"chat_template": read_json(file).get("chat_template")}
                chat = utils.load_tokenizer(folder, settings, raw.get("eos_token_id"))
            return model, raw, chat

    model, raw, chat = ranks.together(load_all)
    # This checks the model, which needs all ranks.
    causal = CausalModel(model, chat.eos_token_ids, chat.pad_token_id, max_positions(raw))
    causal.text = _text_side(folder, chat, model_type(raw))
    if causal.new_cache(1).states:  # which cannot be cut back to a shared beginning later
        causal.user_turn = _user_turn(causal.text)
    if split:
        causal.ranks = ranks
    return causal, causal.text.tokenizer


def _text_side(folder: Path, chat: Any, kind: str) -> TextSide:
    """chat: mlx-lm's tokenizer; kind: the model_type"""
    chat_template = translation = languages = None
    if chat.has_chat_template:
        thinking = (chat.think_start, chat.think_end) if chat.has_thinking else None
        calling = (chat.tool_call_start, chat.tool_call_end) if chat.has_tool_calling else None
        jinja = str(chat.chat_template)
        chat_template = ChatTemplate(chat.apply_chat_template, jinja, thinking, calling)
        translation, languages = translation_of(kind, jinja)
    return TextSide(
        _fast(chat, folder),
        languages=languages,
        defaults=GenerationDefaults.load(folder),
        chat=chat_template,
        bos=chat.bos_token or "",
        translation=translation,
    )


def _user_turn(text: TextSide) -> tuple[int, ...]:
    """The tokens that begin a user's turn in a chat; none if system prompts are refused or put into the turn."""
    if text.chat is None:
        return ()
    before = []
    try:
        for system in ("", "a", "b.\n"):
            first = [dict(role="system", content=system)] if system else []
            users = [dict(role="user", content=content) for content in ("the", " a", "\n\n1")]
            prompts = [text.encode(Prompt([*first, user])).tokens for user in users]
            before.append(common_prefix(prompts)[::-1])
    except InputError:
        return ()
    return tuple(common_prefix(before)[::-1])


def mlx_lm_skeleton(folder: Path) -> Any:
    """mlx-lm's model of a config.json, its weights unset. InputError if there is none."""
    with _mlx_lm_for(folder, "size") as utils:
        return utils.load_model(folder, lazy=True, strict=False)[0]


def _shard(model: Any, raw: Mapping, group: mx.distributed.Group | None) -> None:
    if not hasattr(model, "shard"):
        raise InputError(f"mlx-lm cannot split a {raw.get('model_type')} model among ranks")
    model.shard(group)
    mx.eval(model.parameters())


def _fast(chat: Any, folder: Path) -> Tokenizer:
    """A tokenizer that encodes and decodes as mlx-lm's does, without transformers."""
    tokenizer = getattr(chat, "backend_tokenizer", None)
    probe = "A probe, 1:\n  x"
    if not isinstance(tokenizer, Tokenizer) or tokenizer.encode(probe).ids != chat.encode(probe):
        raise InputError(f"{folder}: its tokenizer is code, not a tokenizer.json")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def convert(
    folder: Path,
    adapter: Path | None,
    output: Path,
    dtype: str | None = None,
    quantization: Quantization | None = None,
) -> None:
    """Convert a decoder-only model's folder by mlx-lm to a new one, or merge an adapter that mlx-lm trained into it."""
    if adapter and not (adapter / MLX_LMS_ADAPTER).exists():
        raise InputError(f"{adapter}: PEFT's, for a decoder-only model: merge it with PEFT first")
    if adapter and (dtype or quantization):
        raise InputError(f"{adapter}: mlx-lm fuses an adapter in its base's type and bits")
    if adapter:
        with _mlx_lm_for(adapter, "fuse") as utils:
            model, tokenizer, config = utils.load(
                str(folder), adapter_path=str(adapter), return_config=True
            )
            layers = [(n, m.fuse()) for n, m in model.named_modules() if hasattr(m, "fuse")]
            model.update_modules(tree_unflatten(layers))
            utils.save(output, str(folder), model, tokenizer, config)
        return
    with _mlx_lm_for(folder, "convert") as utils:
        from mlx_lm.convert import convert

        check_cache(utils.load_model(folder, lazy=True)[0])  # before the slow part
        named: dict[str, Any] = {}
        if quantization:
            named = {f"q_{key}": value for key, value in vars(quantization).items()}
            named["quantize"] = True
        convert(str(folder), str(output), dtype=dtype or "bfloat16", **named)
        if (folder / "chat_template.json").exists():
            shutil.copy(folder / "chat_template.json", output)
