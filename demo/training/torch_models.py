"""The demo's models as PyTorch trains them: what a batch costs, what is answered, how it is saved.

Both take rows of tokens: prompts, and answers that end in EOS.
"""

import copy
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

from demo.pair import KINDS, SHORT_KINDS
from demo.training.tasks import SENTENCE_LANGUAGES

PAD, EOS = 0, 1
PIECES = 1024
USER, ASSISTANT = PIECES, PIECES + 1  # what the chat template has before a prompt and an answer
MOST_TOKENS = 160  # of an answer

Rows = list[list[int]]


def pad(rows: Rows, fill: int = PAD, left: bool = False) -> torch.Tensor:
    width = max(map(len, rows))
    filled = [(row, [fill] * (width - len(row))) for row in rows]
    return torch.tensor([more + row if left else row + more for row, more in filled])


class EncoderDecoder:
    """T5."""

    tokens, kinds = PIECES, KINDS

    def __init__(self, shape: dict):
        config = T5Config(  # type: ignore[call-arg]
            **shape,
            num_decoder_layers=shape["num_layers"],
            feed_forward_proj="relu",
            dropout_rate=0.0,
            pad_token_id=PAD,
            eos_token_id=EOS,
            decoder_start_token_id=PAD,
            task_specific_params={  # what translate.py asks for a language with
                f"translation_en_to_{code}": {"prefix": f"translate English to {language}: "}
                for code, language in zip(("de", "fr", "es"), SENTENCE_LANGUAGES, strict=True)
            },
            attn_implementation="eager",  # for texts as short as these
        )
        self.network = T5ForConditionalGeneration(config)

    @staticmethod
    def length(prompt: list[int], answer: list[int]) -> tuple[int, int]:
        """Rows that are close in this share a batch."""
        return len(answer), len(prompt)

    def optimizers(self, learning_rate: float) -> list[torch.optim.Optimizer]:
        return optimizers(self.network, r"\.block\.", learning_rate)

    def loss(self, prompts: Rows, answers: Rows) -> torch.Tensor:
        tokens = pad([[*prompt, EOS] for prompt in prompts])
        return self.network(
            input_ids=tokens, attention_mask=(tokens != PAD).long(), labels=pad(answers, -100)
        ).loss

    def answer(self, prompts: Rows) -> Rows:
        """Greedy answers, with what follows EOS."""
        tokens = pad([[*prompt, EOS] for prompt in prompts])
        return greedy(self.network, tokens)[:, 1:].tolist()


class DecoderOnly:
    """Llama: a prompt and its answer are one text, of which the answer is learned."""

    tokens, kinds = PIECES + 2, SHORT_KINDS

    def __init__(self, shape: dict):
        config = LlamaConfig(  # type: ignore[call-arg]
            **shape,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            pad_token_id=PAD,
            bos_token_id=None,
            eos_token_id=EOS,
            attn_implementation="eager",  # for texts as short as these
        )
        self.network = LlamaForCausalLM(config)
        self._body = torch.compile(self.network.model, dynamic=True)

    @staticmethod
    def length(prompt: list[int], answer: list[int]) -> int:
        return len(prompt) + len(answer)

    def optimizers(self, learning_rate: float) -> list[torch.optim.Optimizer]:
        return optimizers(self.network, r"\.layers\.", learning_rate)

    def loss(self, prompts: Rows, answers: Rows) -> torch.Tensor:
        before = [[USER, *prompt, ASSISTANT] for prompt in prompts]
        pairs = list(zip(before, answers, strict=True))
        tokens = pad([prompt + answer for prompt, answer in pairs])
        labels = pad([[-100] * len(prompt) + answer for prompt, answer in pairs], -100)[:, 1:]
        hidden = self._body(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
        learned = labels != -100
        logits = self.network.lm_head(hidden[learned])
        return torch.nn.functional.cross_entropy(logits.float(), labels[learned])

    def answer(self, prompts: Rows) -> Rows:
        """Greedy answers, with what follows EOS."""
        tokens = pad([[USER, *prompt, ASSISTANT] for prompt in prompts], left=True)
        return greedy(self.network, tokens)[:, tokens.shape[1] :].tolist()


def optimizers(network, layers: str, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the `layers` (a pattern of their names), AdamW for the rest."""
    parts: dict[bool, list] = {True: [], False: []}
    for name, parameter in network.named_parameters():
        in_layer = re.search(layers, name) and "relative_attention_bias" not in name
        parts[bool(in_layer) and parameter.ndim == 2].append(parameter)
    return [
        torch.optim.Muon(
            parts[True], learning_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(parts[False], learning_rate, betas=(0.9, 0.98), weight_decay=0.01),
    ]


def greedy(network, tokens: torch.Tensor) -> torch.Tensor:
    return network.generate(
        input_ids=tokens,
        attention_mask=(tokens != PAD).long(),
        max_new_tokens=MOST_TOKENS,
        do_sample=False,
    )


@torch.no_grad()
def fill_unused_rows(embedding: torch.Tensor, tokens: int) -> None:
    """Bring the rows that no token has near zero, and so their logits, far below those of tokens:
    training leaves them improbable, and not more."""
    noise = torch.randn(embedding[tokens:].shape, generator=torch.Generator().manual_seed(0))
    embedding[tokens:] = 0.01 * noise


def save(model: EncoderDecoder | DecoderOnly, folder: Path) -> None:
    """bfloat16 weights and config.json, as a Hugging Face checkpoint folder."""
    scratch = folder / "saving"
    saved: Any = copy.deepcopy(model.network)
    fill_unused_rows(saved.get_input_embeddings().weight, model.tokens)
    saved.to(torch.bfloat16).save_pretrained(scratch)
    for file in ("config.json", "model.safetensors"):
        (scratch / file).replace(folder / file)
    shutil.rmtree(scratch)
