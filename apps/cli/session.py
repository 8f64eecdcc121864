"""What main.py decodes with: one record for prompts, files of prompts and chats."""

from collections.abc import Callable
from dataclasses import dataclass

from apps.cli.display import Display
from decoder import Content, Options, Response, SpeculativeDecoder
from speculative.models.ranks import ALONE, Ranks
from speculative.text.text_side import Prompt, PromptFormat


@dataclass(frozen=True)
class Session:
    decoder: SpeculativeDecoder
    options: Options
    prompt_format: PromptFormat
    display: Display
    remember: Callable[[Response], object] = lambda response: None
    ranks: Ranks = ALONE

    def prepare(self, content: Content) -> Prompt:
        """A prompt of what a line of a file has. InputError for what the model cannot take."""
        prompt = self.prompt_format.prompt(content)
        self.decoder.maker.check(prompt, self.options)
        return prompt
