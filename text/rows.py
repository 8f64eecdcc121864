"""Rows to decode, made from prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from common.errors import InputError
from speculative.model import Model
from speculative.options import FORMS, Options
from speculative.row import Row
from speculative.sampling import RowSeeds
from text.grammar_compiler import Grammars
from text.memory import Memory
from text.stream import TextStream
from text.text_side import Prompt, TextSide, check_prompt

# A text, a chat's messages, token ids, or one of these with a reference
Content = str | Sequence[Mapping[str, Any]] | Sequence[int] | Prompt


class RowMaker:
    """Makes a model's rows: tokens, options with the checkpoint's defaults, a text, and what it has to fit or resembles."""

    def __init__(self, model: Model, text: TextSide, memory: Memory | None = None):
        self.model = model
        self.text = text
        self.memory = memory
        self.hidden = {model.config.pad_token_id, *model.config.eos_token_ids, *text.hidden}

    @cached_property
    def grammars(self) -> Grammars:
        return Grammars(self.text.tokenizer, self.model.config, self.hidden)

    def row(self, prompt: Content, options: Options, seeds: RowSeeds | None = None) -> Row:
        """A row to decode. Raises InputError if the prompt is empty or too long, a language is unknown, or the model
        lacks a token. seeds: of the list that the prompt is in, where a repeated one gets another"""
        checked = check_prompt(prompt)
        config = self.model.config
        encoded = self.text.encode(
            checked, options.source_lang, options.target_lang, options.prompt_template
        )
        tokens = encoded.tokens
        size = self.model.source_vocab_size
        if max(tokens, default=0) >= size:
            raise InputError(f"the prompt has the token {max(tokens)}, the model {size} tokens")
        most = config.max_prompt_tokens
        if most is not None and len(tokens) > most:
            raise InputError(f"the prompt has {len(tokens)} tokens; the model reads {most} at most")
        prefix = encoded.prefix or self.model.prefix(tokens)
        forced = self.model.forced_bos_token_id
        if options.forced_bos_token_id is not None and prefix[-1:] == [forced]:
            prefix = prefix[:-1]
        begun: list[int] = []
        if encoded.begun:
            begun = self.text.tokenizer.encode(encoded.begun, add_special_tokens=False).ids
            if self.model.start_token_id is not None:  # a chat template has it in the prompt
                prefix = [*prefix, *begun]
        options = self.text.defaults.with_defaults(options, len(prefix))
        stops = [options.stop] if isinstance(options.stop, str) else options.stop
        hidden = {*self.hidden, *(options.stop_token_ids or ())}
        stream = TextStream(self.text.tokenizer, hidden, stops, begun)
        row = Row(tokens, options, text=stream, prompt_text=encoded.text)
        if options.temp:
            row.seed = (seeds or RowSeeds(options.seed))(tokens)
        if any(getattr(options, name) is not None for name in FORMS):
            row.grammar = self.grammars.matcher(options)
        row.begin(prefix, config)
        reference = checked.reference or options.reference
        if not reference and self.memory:
            languages = encoded.source_lang, encoded.target_lang
            reference = self.memory.reference(encoded.text, *languages)
            row.stats.remembered = int(reference is not None)
        if reference and options.num_beams == 1:
            tokens = self.text.tokenizer.encode(reference, add_special_tokens=False).ids
            row.reference = [*tokens[: row.max_tokens], *config.eos_token_ids[:1]]
        return row

    def rows(
        self, prompt: Content, options: Options, seeds: RowSeeds, limit: int | None = None
    ) -> list[Row]:
        """A row for each of num_samples; of a beam search one, with the others in `others`. limit: of a prompt's tokens.
        Errors: as `row`, and InputError for more tokens."""
        rows = [self.row(prompt, options, seeds) for _ in range(options.num_samples)]
        tokens = max(len(rows[0].prompt), rows[0].prefix_size)
        if limit is not None and tokens > limit:
            raise InputError(f"the prompt has {tokens} tokens; {limit} at most")
        if options.num_beams > 1:
            rows[0].others = rows[1:]
            return rows[:1]
        return rows

    def check(self, prompt: Content, options: Options) -> None:
        """Raise InputError if the prompt cannot be decoded: see `row`."""
        # With a reference: otherwise the memory would be searched for one.
        self.row(prompt, replace(options, reference=options.reference or "-"))
