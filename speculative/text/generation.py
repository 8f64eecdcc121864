"""A checkpoint's generation_config.json, read as transformers' `generate` reads it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from speculative.checkpoints.folder import read_json
from speculative.common.errors import errors_name
from speculative.step.options import COUNT, OptionError, Options

FILE = "generation_config.json"

_FORCED = ("forced_bos_token_id", "forced_eos_token_id")  # one or, as in old files, a list
# Same names as in options.Options
_OPTIONS = ("repetition_penalty", "no_repeat_ngram_size", "bad_words_ids", "suppress_tokens")
_OPTIONS += _FORCED
_BEAMS = ("length_penalty", "early_stopping")  # used as well if the user asks for beams
_LENGTHS = {  # (length of the text, length of prefix and text) -> our option
    ("min_new_tokens", "min_length"): "min_tokens",
    ("max_new_tokens", "max_length"): "max_tokens",
}
# Change nothing
_OFF_AT_0 = (
    "no_repeat_ngram_size min_length min_new_tokens encoder_no_repeat_ngram_size diversity_penalty"
)
_OFF_AT_1 = "repetition_penalty num_beams length_penalty encoder_repetition_penalty guidance_scale num_beam_groups"
_NEUTRAL = dict.fromkeys(_OFF_AT_0.split(), 0) | dict.fromkeys(_OFF_AT_1.split(), 1)
_NOT_DONE = (  # sampling settings are not among them: greedy is the default here
    "num_beams num_beam_groups diversity_penalty begin_suppress_tokens sequence_bias "
    "encoder_no_repeat_ngram_size encoder_repetition_penalty exponential_decay_length_penalty guidance_scale "
    "penalty_alpha stop_strings max_time token_healing watermarking_config dola_layers constraints force_words_ids"
).split()


@dataclass(frozen=True)
class GenerationDefaults:
    """The settings of a checkpoint that change a text, under transformers' names."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    not_done: Mapping[str, Any] = field(default_factory=dict)  # settings that we do not support

    @classmethod
    def load(cls, folder: Path, in_prefix: Iterable[str] = ()) -> "GenerationDefaults":
        """The settings in a folder, from config.json if there is no generation_config.json, as in old checkpoints.
        in_prefix: settings that the model's prefix already covers. InputError for values out of range."""
        name = FILE if (folder / FILE).exists() else "config.json"
        given = {k: v for k, v in read_json(folder / name).items() if v is not False}
        given = {k: v for k, v in given.items() if v not in (None, [], {}, _NEUTRAL.get(k))}
        for key, value in given.items():
            if key in _FORCED and isinstance(value, list) and all(type(t) is int for t in value):
                given[key] = min(value)  # the first of the equally probable
        names = {*_OPTIONS, *_BEAMS, *chain(*_LENGTHS)} - set(in_prefix)
        settings = {key: value for key, value in given.items() if key in names}
        not_done = {key: value for key, value in given.items() if key in _NOT_DONE}
        defaults = cls(settings, not_done)
        with errors_name(folder / name):
            defaults.with_defaults(Options(num_beams=2), 0)
        return defaults

    def with_defaults(self, options: Options, prefix_size: int) -> Options:
        """The options, with these settings in place of None; prefix_size: tokens that the row begins with."""
        defaults = {k: self.settings[k] for k in _same_names(options) if k in self.settings}
        if prefix_size > 1:  # transformers forces it only after a single token
            defaults.pop("forced_bos_token_id", None)
        for (new, total), name in _LENGTHS.items():
            if new in self.settings:
                defaults[name] = self.settings[new]
            elif total in self.settings:
                length = self.settings[total]
                if not COUNT.accepts(length):
                    raise OptionError(total, length, COUNT)
                defaults[name] = max(int(name == "max_tokens"), length - prefix_size)
        missing = {k: v for k, v in defaults.items() if getattr(options, k) is None}
        return replace(options, **missing)

    def ignored(self, num_beams: int | None) -> str:
        """A line about settings that we do not support, with the user's num_beams; "" if there are none."""
        done = {"num_beams"} if (num_beams or 1) > 1 else set()
        left = [f"{name}={value}" for name, value in self.not_done.items() if name not in done]
        return f"ignored from {FILE}: {', '.join(left)}" if left else ""

    def applied(self, options: Options) -> dict[str, Any]:
        """The settings that apply under the user's `options`."""
        ours = {key: key for key in _same_names(options)}
        ours |= {key: name for pair, name in _LENGTHS.items() for key in pair}
        free = {key for key, name in ours.items() if getattr(options, name) is None}
        return {key: value for key, value in self.settings.items() if key in free}


def _same_names(options: Options) -> tuple[str, ...]:
    return (*_OPTIONS, *_BEAMS) if options.num_beams > 1 else _OPTIONS
