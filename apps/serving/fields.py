"""The fields that OpenAI's and other servers' clients send: options of a row, settings that have to be off, bookkeeping."""

from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from speculative.common.errors import InputError
from speculative.step.options import DECLARED, FORMS, MAX_NUMBER, OptionError, Options

_FALSE = (
    "background bad_words ban_eos_token documents dry_multiplier dynamic_temperature dynatemp_range early_stopping echo"
    " enable_thinking epsilon_cutoff eta_cutoff extra_body functions ignore_eos include_stop_str_in_output logits_processors"
    " mcp_servers min_keep mirostat mirostat_mode n_probs penalty_alpha plugins post_sampling_probs provider return_token_ids"
    " return_tokens return_tokens_as_token_ids smoothing_factor suffix tools top_a top_logprobs transforms use_beam_search"
    " web_search_options xtc_probability"
)
_TRUE = "add_bos_token skip_special_tokens spaces_between_special_tokens"
_ONE = "best_of encoder_repetition_penalty guidance_scale length_penalty repeat_penalty tfs tfs_z typical typical_p"
THINKING_OFF: dict[str, tuple] = {  # other servers' fields
    "reasoning": ({"enabled": False}, {"effort": "none"}),
    "thinking": (False, {"type": "disabled"}),
}
NEUTRAL: dict[str, tuple] = {  # unsupported fields -> the values that change nothing
    **dict.fromkeys(_FALSE.split(), (False, [], "", {})),
    **dict.fromkeys(_TRUE.split(), (True,)),
    **dict.fromkeys(_ONE.split(), (1,)),
    **dict.fromkeys(("function_call", "tool_choice"), ("none", "auto")),
    **THINKING_OFF,
    "include": ([], ["reasoning.encrypted_content"]),
    "modalities": (["text"],),
    "previous_response_id": (),
    "top_n_sigma": (-1, 0),
    "truncation": ("disabled",),
    "verbosity": ("medium",),
}
IGNORED = (  # fields that do not affect the text; the last ones are of samplers that have to be off
    "user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_retention parallel_tool_calls"
    " cache_prompt priority request_id chat_id session_id id keep_alive usage tags ttl timeout guided_decoding_backend"
    " id_slot n_keep timings_per_token mirostat_tau mirostat_eta xtc_threshold dynatemp_exponent repeat_last_n penalize_nl"
    " dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers"
).split()
_FORMS = "guided_choice guided_grammar guided_json guided_regex grammar json_schema regex".split()
MAX_FORM = 1 << 16  # characters: llguidance may hold Python's lock for seconds over a larger one
SERVER_WIDE = ("lookup", "delta", "acceptance")
_SERVED = {name: d.served for name, d in DECLARED.items() if d.served is not None}
OPTION_NAMES = {d.request or name: name for name, d in DECLARED.items() if d.request is not None}
OPTION_NAMES["num_draft_tokens"] = "num_draft"  # mlx-lm's name
_OFF = {  # option -> other servers' value for "off" or, of seeds, "a new one"; and ours
    "top_k": (-1, 0),
    "top_p": (0, 1.0),
    "repetition_penalty": (0, 1.0),
    "stop": ("", ()),
    "seed": (-1, None),
    "max_tokens": (-1, MAX_NUMBER),
}


def check_names(more: dict[str, Any], declared: Iterable[str]) -> None:
    """Raise InputError for an unknown or unsupported field. declared: the other fields that may have been meant."""
    for field, value in more.items():
        if not any(field in names for names in (OPTION_NAMES, NEUTRAL, SERVER_WIDE, IGNORED)):
            if field in _FORMS:
                hint = "use response_format or structured_outputs"
                raise InputError(f"there is no field {field!r}; {hint}")
            near = get_close_matches(field, (*OPTION_NAMES, *declared), n=1, cutoff=0.8)
            hint = f"; nearest: {near[0]!r}" if near else ""
            raise InputError(f"there is no field {field[:50]!r}{hint}")
        if field in SERVER_WIDE:
            raise InputError(f"{field} is set for the whole server when it starts")
        if field in NEUTRAL and value not in NEUTRAL[field]:
            raise InputError(f"{field} is not supported")


def with_options(defaults: Options, given: dict[str, Any], max_tokens: int) -> Options:
    """The defaults with a request's options; at most `max_tokens`. InputError, in its words, if one is out of range."""
    given = {name: _normalised(name, value) for name, value in given.items()}
    if isinstance(given.get("max_tokens"), int):
        given["max_tokens"] = min(given["max_tokens"], max_tokens)
    if given.keys() & {*FORMS}:  # instead of the defaults'
        given = dict.fromkeys(FORMS) | given
    for name in given.keys() & {*FORMS}:
        check_size(name, given[name])
    for name, limit in (_SERVED | {"max_tokens": max_tokens}).items():
        value = given.get(name)
        if isinstance(value, int) and value > limit:
            raise InputError(f"{_request_name(name)} is {value}; {limit} at most")
        if isinstance(value, (list, dict)) and len(value) > limit:
            raise InputError(f"{_request_name(name)} has {len(value)} entries; {limit} at most")
    samples = given.get("num_samples", defaults.num_samples)
    if isinstance(samples, int) and samples > 1 and given.get("temp", defaults.temp) == 0:
        raise InputError("n above 1 needs temperature above 0")  # a request has no beams
    try:
        return replace(defaults, **given)
    except OptionError as error:
        raise OptionError(_request_name(error.name), error.value, error.values) from None


def check_size(name: str, form: Any) -> None:
    """Raise InputError for a form that is too large. name: what to call it"""
    if len(str(form)) > MAX_FORM:
        raise InputError(f"{name} has {len(str(form))} characters; {MAX_FORM} at most")


def _normalised(name: str, value: Any) -> Any:
    """An option's value as `Options` takes it: JSON writes 256.0 for 256, and other servers have their own "off"."""
    if isinstance(value, float) and value.is_integer() and DECLARED[name].values.kind is int:
        value = int(value)
    if name == "stop" and isinstance(value, list):
        value = [text for text in value if text != ""]
    theirs, ours = _OFF.get(name, (None, None))
    return ours if value == theirs and not isinstance(value, bool) else value


def _request_name(name: str) -> str:
    return DECLARED[name].request or name
