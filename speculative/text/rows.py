"""Rows to decode, made from prompts, and their text from tokens as they arrive."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from speculative.common.errors import InputError
from speculative.models.contract import Model
from speculative.step.beams import BeamRow
from speculative.step.options import FORMS, Options
from speculative.step.row import Row
from speculative.step.sampling import RowSeeds
from speculative.text.grammar_compiler import Grammars
from speculative.text.memory import Memory
from speculative.text.text_side import Prompt, TextSide, check_prompt

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
        about = options.source_lang, options.target_lang, options.prompt_template
        encoded = self.text.encode(checked, *about)
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
            if self.model.attend_to:  # a chat template has it in the prompt
                prefix = [*prefix, *begun]
        options = self.text.defaults.with_defaults(options, len(prefix))
        stops = [options.stop] if isinstance(options.stop, str) else options.stop
        hidden = {*self.hidden, *(options.stop_token_ids or ())}
        stream = TextStream(self.text.tokenizer, hidden, stops, begun)
        kind = BeamRow if options.num_beams > 1 else Row
        row = kind.begin(tokens, options, prefix, config, text=stream, prompt_text=encoded.text)
        if options.temp:
            row.seed = (seeds or RowSeeds(options.seed))(tokens)
        if any(getattr(options, name) is not None for name in ("tools", *FORMS)):
            row.grammar = self.grammars.matcher(options)
        reference = checked.reference or options.reference
        if not reference and self.memory:
            codes = encoded.source_lang, encoded.target_lang
            reference = self.memory.reference(encoded.text, *codes)
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
        first, *others = rows
        if isinstance(first, BeamRow):
            first.others = others
            return [first]
        return rows

    def check(self, prompt: Content, options: Options) -> None:
        """Raise InputError if the prompt cannot be decoded: see `row`."""
        # With a reference: otherwise the memory would be searched for one.
        self.row(prompt, replace(options, reference=options.reference or "-"))


class TextStream:
    """Turns tokens into text as they arrive, without decoding earlier ones again.

    `hidden` tokens (padding, end of sequence) have no text; sentinels (`<extra_id_0>`) do. The text ends before the
    first complete stop text; an ending that may be the beginning of a stop text is held back until that is known.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        hidden: Container[int],
        stops: Sequence[str] = (),
        begun: Sequence[int] = (),
    ):
        """begun: tokens whose text goes on here. It is not part of what `push` returns, and no stop text begins in it."""
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._stops: Sequence[str] = ()
        self._stream = DecodeStream(skip_special_tokens=False)
        self._tokens: list[int] = []
        self.text = ""  # of all tokens
        self._waiting = ""  # the end of `text`, held back
        self.stopped = False
        self.push(begun)
        self._stops = stops

    def push(self, tokens: Sequence[int]) -> str:
        """The text that `tokens` add. A character is held back until all its bytes are there."""
        before = len(self.text)
        for token in tokens:
            if token not in self._hidden:
                self._tokens.append(token)
                try:
                    self.text += self._stream.step(self._tokenizer, token) or ""
                except Exception:  # a bare one: invalid bytes changed characters decoded before
                    self._stream = DecodeStream(skip_special_tokens=False)
                    self._stream.step(self._tokenizer, token)
                    self.text += self._rest()
        return self._shown(self.text[before:])

    def finish(self) -> str:
        """The text still held back, after the last token."""
        rest = self._rest()
        self.text += rest
        return self._shown(rest) + self._waiting

    def _rest(self) -> str:
        """The text of all tokens beyond `text`."""
        return self._tokenizer.decode(self._tokens, skip_special_tokens=False)[len(self.text) :]

    def _shown(self, text: str) -> str:
        """The text to show after the whole has grown by `text`."""
        if self.stopped:
            return ""
        text = self._waiting + text
        complete = [(i + len(stop), i) for stop in self._stops if (i := text.find(stop)) >= 0]
        if complete:
            self.stopped = True
            self._waiting = ""
            return text[: min(complete)[1]]
        longest = max(map(len, self._stops), default=1)
        tail = range(max(0, len(text) - longest + 1), len(text))
        begun = (i for i in tail if any(stop.startswith(text[i:]) for stop in self._stops))
        end = next(begun, len(text))
        self._waiting = text[end:]
        return text[:end]
