"""The fields of OpenAI's requests that are options of a row, and those of other servers: which are known, which have to be off, and
their values as `Options` takes them."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from common.errors import InputError
from speculative.options import DECLARED

# Values that change nothing, and the fields, also of other servers
_UNSUPPORTED: tuple[tuple[tuple, str], ...] = (
    ((True,), "add_bos_token skip_special_tokens spaces_between_special_tokens"),
    (
        (False,),
        "background ban_eos_token dynamic_temperature early_stopping echo enable_thinking",
    ),
    ((False,), "ignore_eos include_stop_str_in_output post_sampling_probs return_token_ids"),
    ((False,), "return_tokens return_tokens_as_token_ids use_beam_search"),
    (
        (0,),
        "dry_multiplier dynatemp_range epsilon_cutoff eta_cutoff min_keep mirostat mirostat_mode",
    ),
    ((0,), "n_probs penalty_alpha smoothing_factor top_a top_logprobs xtc_probability"),
    ((1,), "best_of encoder_repetition_penalty guidance_scale length_penalty repeat_penalty"),
    ((1,), "tfs tfs_z typical typical_p"),
    ((-1, 0), "top_n_sigma"),
    (([],), "bad_words documents functions logits_processors tools"),
    (("none", "auto"), "function_call tool_choice"),
    (([], ["reasoning.encrypted_content"]), "include"),
    ((["text"],), "modalities"),
    ((), "previous_response_id"),
    (("",), "suffix"),
    (("disabled",), "truncation"),
    (("medium",), "verbosity"),
)
NEUTRAL = {field: values for values, fields in _UNSUPPORTED for field in fields.split()}
_INSTEAD = {  # unsupported fields -> the nearest that works
    "best_of": "n",
    "function_call": "tool_choice",
    "functions": "tools",
    "previous_response_id": "the whole conversation as input",
    "tools": "/v1/chat/completions",
}
IGNORED = (  # fields that do not affect the text; the last ones are of samplers that have to be off
    "user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_retention parallel_tool_calls"
    " cache_prompt priority request_id chat_id session_id id keep_alive id_slot n_keep timings_per_token mirostat_tau"
    " mirostat_eta xtc_threshold dynatemp_exponent repeat_last_n penalize_nl dry_base dry_allowed_length"
    " dry_penalty_last_n dry_sequence_breakers"
).split()
SERVER_WIDE = ("lookup", "delta", "acceptance")
SERVED = {name: d.served for name, d in DECLARED.items() if d.served is not None}
OPTION_NAMES = {d.request or name: name for name, d in DECLARED.items() if d.request is not None}
ALIASES = {"num_draft_tokens": "num_draft"}  # mlx-lm's names -> ours
_NEAR = 0.8  # difflib's similarity of a field that was probably meant
_OFF = {  # option -> other servers' value for "off" or, of seeds, "a new one"; and ours
    "top_k": (-1, 0),
    "top_p": (0, 1.0),
    "repetition_penalty": (0, 1.0),
    "stop": ("", ()),
    "seed": (-1, None),
}


def check_names(more: dict[str, Any], declared: Iterable[str]) -> None:
    """Raise InputError for an unknown or unsupported field. declared: the other fields that may have been meant."""
    for field, value in more.items():
        if not any(field in names for names in (OPTION_NAMES, NEUTRAL, SERVER_WIDE, IGNORED)):
            near = get_close_matches(field, (*OPTION_NAMES, *declared), n=1, cutoff=_NEAR)
            hint = f"; nearest: {near[0]!r}" if near else ""
            raise InputError(f"there is no field {field[:50]!r}{hint}")
        if field in SERVER_WIDE and value is not None:
            raise InputError(f"{field} is set for the whole server when it starts")
        if field in NEUTRAL and value not in (None, *NEUTRAL[field]):
            instead = f"; use {_INSTEAD[field]}" if field in _INSTEAD else ""
            raise InputError(f"{field} is not supported{instead}")


def normalised(name: str, value: Any) -> Any:
    """An option's value as `Options` takes it: JSON writes 256.0 for 256, and other servers have their own "off"."""
    if isinstance(value, float) and value.is_integer() and DECLARED[name].values.kind is int:
        value = int(value)
    theirs, ours = _OFF.get(name, (None, None))
    return ours if value == theirs and not isinstance(value, bool) else value


def request_name(name: str) -> str:
    """An option's name in a request."""
    return DECLARED[name].request or name


def check_sizes(options: dict[str, Any], limits: dict[str, int]) -> None:
    """Raise InputError if an option is above the limit for requests."""
    for name, value in options.items():
        limit = limits.get(name)
        is_list = isinstance(value, (list, dict))
        size = len(value) if is_list else value
        if limit is not None and isinstance(size, int) and size > limit:
            excess = f"has {size} entries" if is_list else f"is {size}"
            raise InputError(f"{request_name(name)} {excess}; {limit} at most")
