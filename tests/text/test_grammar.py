"""Texts in a given form: they fit it, they are plain decoding's under the same masks, and a form that fails fails alone."""

import json
import re
from collections import Counter
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from helpers.causal_folders import write
from helpers.decoding import Waiting, drafters, finish, new_driver, new_rows
from helpers.laws import LIMIT, TableModel, V, deviation, frequencies, joint_law

from apps.serving.bodies import validated
from apps.serving.requests import ResponseRequest
from decoder import SpeculativeDecoder, load
from speculative.common.errors import InputError
from speculative.drafters.forms import Matcher
from speculative.step.options import Options
from speculative.step.row import FAILED, respond
from speculative.step.sampling import probabilities
from speculative.text.grammar_compiler import Grammars
from speculative.text.tokenizer import byte_tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 9},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "likes": {"type": "array", "items": {"enum": ["tea", "coffee"]}, "maxItems": 2},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
RECORDS = 'start: "[" record (", " record)* "]"\nrecord: "a record of " /[0-9]{1,2}/ " parts"'
FORMS = [
    {"json_schema": PERSON},
    {"regex": r"(one|two)( hundred)? [a-z]{2,9}\."},
    {"grammar": RECORDS},
    {"regex": " leading (yes|no)"},
]
PROMPTS = ["translate number to German: 1284", "a record of 12 parts", "one two", "tea"]


def fits(form: dict, text: str) -> bool:
    if "json_schema" not in form:
        part = "a record of [0-9]{1,2} parts"
        return bool(re.fullmatch(form.get("regex", rf"\[{part}(, {part})*\]"), text))
    value = json.loads(text)
    right = 0 <= value["age"] <= 99 and {*value["likes"]} <= {"tea", "coffee"}
    return [*value] == ["name", "age", "likes"] and len(value["name"]) <= 9 and right


def texts(decoder: SpeculativeDecoder, batch_size: int, forms: Any = FORMS, **options) -> list:
    """The responses for PROMPTS, each in its own form, `batch_size` side by side."""
    waiting = [
        decoder.maker.row(prompt, Options(**form, **options), lambda tokens: bytes(16))
        for prompt, form in zip(PROMPTS, forms, strict=True)
    ]
    with decoder.running(Options(**options)) as driver:
        list(driver.decode(Waiting(waiting), batch_size))
    return [respond(row) for row in waiting]


@pytest.fixture(scope="module")
def lossless(tmp_path_factory):
    """A decoder-only pair whose byte-level tokenizer gives every text back: only usual tokens may write what is forced."""
    folder = tmp_path_factory.mktemp("pair")
    write(folder / "target")
    write(folder / "draft", noise=0.2)
    (target, tokenizer), (draft, _) = load(folder / "target"), load(folder / "draft")
    return target, tokenizer, draft


@pytest.fixture(params=["SentencePiece", "byte-level"])
def pair(request, demo_pair, lossless):
    return demo_pair if request.param == "SentencePiece" else lossless


SAMPLED = pytest.param({"temp": 1.0, "seed": 3}, marks=pytest.mark.slow)


@pytest.mark.parametrize("sampled", [{}, SAMPLED])
def test_texts_fit_their_forms_and_are_plain_decodings(cpu, pair, sampled):
    target, tokenizer, draft = pair
    alone, both = (
        SpeculativeDecoder(target, tokenizer),
        SpeculativeDecoder(target, tokenizer, draft),
    )
    plain = texts(alone, 5, num_draft=0, max_tokens=70, **sampled)
    for form, response in zip(FORMS, plain, strict=True):
        assert response.finish_reason != FAILED
        assert response.finish_reason == "length" or fits(form, response.text), response.text
    assert sum(response.finish_reason == "stop" for response in plain) >= 2
    origins = Counter[str]()
    for decoder, batch_size, settings in (
        (alone, 5, dict(num_draft=6, lookup=True)),
        (alone, 2, dict(num_draft="auto", reference='{"name": "')),
        (both, 5, dict(num_draft=4)),
        (both, 2, dict(num_draft=9, lookup=True)),
        (both, 1, dict(num_draft="auto")),
    ):
        responses = texts(decoder, batch_size, max_tokens=70, **settings, **sampled)
        assert [r.tokens for r in responses] == [r.tokens for r in plain], settings
        origins.update(origin for r in responses for origin in r.origins)
    assert all(origins[kind] > 3 for kind in ("forced", "draft_model", "corrected"))


def test_what_is_forced_passes_and_needs_no_draft_model(cpu, lossless):
    decoder = SpeculativeDecoder(*lossless[:2])
    (response,) = decoder.batch_generate(["x"], json_schema=PERSON, num_draft=8, max_tokens=90)
    assert response.stats.tokens_per_call > 2
    assert (
        response.stats.accepted == response.stats.draft_tokens == response.origins.count("forced")
    )


def test_beams_fit_their_form(pair):
    decoder = SpeculativeDecoder(*pair[:2])
    for form in FORMS:
        responses = decoder.batch_generate(PROMPTS[:2], num_beams=3, max_tokens=60, **form)
        assert all(r.finish_reason == "length" or fits(form, r.text) for r in responses)


class Table:
    """The methods of llguidance's matcher, for a grammar that is a table: which token may follow which, [V, V]. It fails
    when it has read the token `fatal`."""

    def __init__(self, table: np.ndarray, fatal: int = -1):
        self.table, self.fatal, self.text = table, fatal, [0]

    def deep_copy(self):
        copied = Table(self.table, self.fatal)
        copied.text = [*self.text]
        return copied

    def is_error(self):
        return self.fatal in self.text

    def is_accepting(self):
        return False

    def rollback(self, n):
        self.text = self.text[: len(self.text) - n]

    def try_consume_tokens(self, tokens):
        length = self.validate_tokens(tokens)
        self.text += tokens[:length]
        return length

    def validate_tokens(self, tokens):
        pairs = zip([self.text[-1], *tokens], tokens, strict=False)
        return ([not self.table[pair] for pair in pairs] + [True]).index(True)

    def compute_bitmask(self):
        only_end = np.arange(V) == 1
        return np.packbits(
            only_end if self.is_error() else self.table[self.text[-1]], bitorder="little"
        )

    def compute_ff_bytes(self):
        allowed = np.flatnonzero(self.table[self.text[-1]])
        return bytes(allowed.tolist()) if len(allowed) == 1 else b""


def usual(text, new: bytes) -> list[int]:
    return list(new)


RULES = np.array([[0, 1, 1, 1], [1, 1, 0, 1], [0, 0, 0, 1], [1, 0, 1, 1]], bool)


@pytest.mark.slow
def test_rows_have_the_law_of_the_masked_target():
    """Renormalised token by token; a 3 is forced after a 2."""
    target = TableModel(0)
    options = Options(num_draft=2, acceptance="token", max_tokens=3, temp=1.0)
    driver = new_driver(target, drafters(TableModel(1))["both"], options)
    count = 3000
    rows = new_rows(target, [[b % 3, b % 2] for b in range(count)], options)
    for row in rows:
        row.grammar = Matcher(Table(RULES), usual)
    driver.admit(rows)
    shares = frequencies(np.array([row.tokens[1:] for row in finish(driver)]))
    p = np.array(probabilities(mx.array(np.where(RULES, target.logits, -np.inf)), 1.0))
    assert deviation(shares, joint_law(p, 3)) < LIMIT
    other = np.array(probabilities(mx.array(target.logits), 1.0)) * RULES
    assert deviation(shares, joint_law(other, 3) / joint_law(other, 3).sum()) > LIMIT  # conditioned
    assert Counter(o for row in rows for o in row.origins)["forced"] > 99


@pytest.mark.parametrize("kind", ["model", "lookup"])
def test_a_matcher_that_fails_fails_its_row_alone(cpu, kind):
    target, results = TableModel(0), []
    target.config.eos_token_ids = (1,)
    for fatal, drafter in ((2, None), (2, drafters(TableModel(1))[kind]), (-1, None)):
        options = Options(num_draft=3 if drafter else 0, max_tokens=40, temp=1.0)
        driver = new_driver(target, drafter, options)
        rows = new_rows(target, [[2, 3], [3], [2]], options)
        rows[0].grammar = Matcher(Table(np.ones((V, V), bool) & (np.arange(V) != 1), fatal), usual)
        driver.admit(rows)
        results.append([(row.tokens, row.finish_reason) for row in finish(driver)])
    failed, drafted, whole = results
    assert failed == drafted and failed[1:] == whole[1:]
    assert failed[0][1] == FAILED and failed[0][0][-2:] == [2, 1] and whole[0][1] == "length"


def test_the_grammar_wins_over_bans(demo_pair):
    target, tokenizer, _ = demo_pair
    end = target.config.eos_token_ids[0]
    decoder = SpeculativeDecoder(target, tokenizer)
    assert decoder.generate("x", regex="(one|two)", min_tokens=30, max_tokens=40) in ("one", "two")
    assert decoder.generate("x", regex="two", suppress_tokens=[end], max_tokens=40) == "two"


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"json_schema": {"uniqueItems": True}}, "uniqueItems"),
        ({"json_schema": "{"}, "Expecting property name"),
        ({"json_schema": "true"}, "a JSON schema is an object"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"grammar": "start: missing"}, "missing"),
        ({"grammar": "start: <foo>"}, 'unknown special token: "<foo>"$'),
        ({"grammar": 'start: "one" "\\n"'}, "no text in the model's vocabulary"),
        ({"regex": "a\nb"}, "no text in the model's vocabulary"),
        ({"regex": r"[^\s\S]"}, "no text in the model's vocabulary"),
        ({"json_schema": {"oneOf": [{"type": "string"}, {"minLength": 2}]}}, "use anyOf"),
        ({"json_schema": {"patternProperties": {}, "minProperties": 3}}, "use required"),
        ({"json_schema": {"const": -(2**63)}}, "below"),
        ({"regex": "a", "json_schema": {}}, "cannot be used with"),
        ({"regex": "a", "delta": 0.5}, "cannot be used with delta"),
    ],
)
def test_a_wrong_form_is_one_line(demo_pair, form, reason):
    with pytest.raises(InputError, match=reason) as error:
        SpeculativeDecoder(*demo_pair[:2]).maker.check("x", Options(**form))
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_forcing_without_end_is_bounded():
    endless = bytes_only(1).matcher(Options(grammar='start: "ab"{900}'))
    assert endless.forced([], 5) == [100, 101, 100, 101, 100]


def bytes_only(*ends: int) -> Grammars:
    config = SimpleNamespace(vocab_size=259, eos_token_ids=ends)
    return Grammars(byte_tokenizer(0), config, {0, 1, 2})


@pytest.mark.parametrize(
    ("name", "arguments", "fits"),
    [
        ("integer", {"a": 3}, True),
        ("integer", {"a": True}, False),
        ("boolean", {"a": True}, True),
        ("boolean", {}, False),
        ('ä"\\\n', {}, True),
        ('ä"\\\n', {"a": 3}, False),
    ],
)
def test_a_calls_arguments_are_those_of_its_tool(name, arguments, fits):
    """Two tools have definitions of one name, one in an old draft of JSON Schema; one has no parameters, and an odd name."""
    whole = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    old = {"$schema": "http://json-schema.org/draft-04/schema#", "required": ["a"]}
    old |= {"properties": {"a": {"$ref": "#/definitions/D"}}}
    schemas = {
        "integer": {**old, "definitions": {"D": {"type": "integer"}}},
        "boolean": {"$ref": "#/definitions/D", "definitions": {"D": whole}},
        'ä"\\\n': None,
    }
    items = schemas.items()
    tools = [{"type": "function", "name": name, "parameters": schema} for name, schema in items]
    request = validated({"input": "x", "tools": tools}, ResponseRequest)
    text = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    matcher = bytes_only(1).matcher(request.options(Options()))
    assert matcher.is_complete([byte + 3 for byte in text.encode()]) is fits


def tools_of(*schemas: dict, **more) -> dict:
    """The option of tools with these schemas of their arguments."""
    functions = [{"name": f"f{i}", "parameters": schema} for i, schema in enumerate(schemas)]
    return {"functions": functions, "marks": ("", "", ""), "or_text": False, **more}


MARKS_OF_TOKENS = ("<user>\n", "\n", "<system>")


def takes(matcher: Matcher, text: str) -> bool:
    return matcher.is_complete([byte + 3 for byte in text.encode()])


WORD = {"type": "string", "pattern": "^(?!x)[a-z]+$"}
NARROWER = [  # what llguidance cannot express; a value that fits the rest; the place
    ({"type": "array", "uniqueItems": True}, "[1, 1]", ""),
    ({"type": "array", "contains": {"type": "null"}, "minContains": 2}, "[]", ""),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, '{"a": 1}', ""),
    ({"type": "object", "unevaluatedProperties": False}, '{"a": 1}', ""),
    ({"type": "object", "propertyNames": {"maxLength": 1}}, '{"ab": 1}', ""),
    ({"type": "integer", "not": {"const": 3}}, "3", ""),
    ({"if": {"type": "string"}, "then": {"minLength": 2}}, '"a"', ""),
    ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, "3", ""),
    ({"type": "integer", "minimum": -(2**63)}, "-3", ""),
    ({"type": "number", "maximum": 1.7e308}, "3", ""),
    ({"items": [{"anyOf": [WORD, {"type": "null"}]}]}, '["xa"]', ".items.0.anyOf.0"),
    ({"$ref": "#/$defs/W"}, '"xa"', ""),
    ({"patternProperties": {"^(?!x)": {}}, "additionalProperties": False}, '{"a": 1}', ""),
]


@pytest.mark.parametrize(("schema", "value", "place"), NARROWER)
def test_a_tool_leaves_out_what_only_narrows_and_a_schema_is_refused_with_the_place(
    schema, value, place
):
    root = {"type": "object", "properties": {"a": schema, "b": {"const": 1}}}
    root |= {"required": ["a", "b"], "$defs": {"W": WORD}}
    with pytest.raises(InputError, match=f"^json_schema: properties.a{place}: "):
        bytes_only(1).matcher(Options(json_schema=deepcopy(root)))
    matcher = bytes_only(1).matcher(Options(tools=tools_of(PERSON, root)))
    call = '{"name": "f1", "arguments": {"a": %s, "b": %s}}'
    assert takes(matcher, call % (value, 1)) and not takes(matcher, call % (value, 2))


@pytest.mark.parametrize("widens", [False, True])
def test_what_is_no_schema_or_says_nothing(widens):
    """Wrong is wrong for tools too, which are named; what says nothing is no reason to refuse a schema."""
    for wrong, reason in (
        ({"type": "any"}, "Invalid type"),
        ({"$ref": "#/none"}, "does not exist"),
    ):
        schema = {"properties": {"a": {"items": wrong}}}
        option = {"tools": tools_of({}, schema)} if widens else {"json_schema": schema}
        where = "tools: f1." if widens else "json_schema: "
        with pytest.raises(InputError, match=f"^{where}properties.a.items: .*{reason}"):
            bytes_only(1).matcher(Options(**option))
    idle = {"uniqueItems": False, "unevaluatedItems": True, "dependentRequired": {}}
    assert takes(bytes_only(1).matcher(Options(json_schema=idle)), "[1, 1]")


MARKS = ("<call>\n", "\n</call>\n<call>\n", "\n</call>")
CALL = '{"name": "f0", "arguments": {"on": true}}'
SWITCH = {"properties": {"on": {"type": "boolean"}}, "required": ["on"]}


@pytest.mark.parametrize("text", ["", "Well.", "Well. <cal", "Well. <call>x", "\n", '{"name": '])
def test_a_text_may_call_tools_after_the_models_own_mark(text):
    free = bytes_only(1).matcher(Options(tools=tools_of(SWITCH, marks=MARKS, or_text=True)))
    assert takes(free, text) == ("<call>" not in text)
    called = f"{text.partition('<call>')[0]}<call>\n{CALL}\n</call>"
    assert takes(free, called) and takes(free, f"{called}\n<call>\n{CALL}\n</call>")
    for wrong in (called[:-1], f"{called} ", called.replace("true", "1"), f"<call>{CALL}</call>"):
        assert not takes(free, wrong)
    single = tools_of(SWITCH, marks=(MARKS[0], "", MARKS[2]), or_text=True)
    form = bytes_only(1).matcher(Options(tools=single, regex="Yes|No"))
    assert takes(form, "Yes") and takes(form, f"<call>\n{CALL}\n</call>")
    assert not takes(form, text) and not takes(form, f"{called}\n<call>\n{CALL}\n</call>")
    bound = bytes_only(1).matcher(Options(tools=tools_of(SWITCH, marks=MARKS)))
    assert takes(bound, f"<call>\n{CALL}\n</call>") and not takes(bound, text)


def test_a_special_token_is_a_mark_and_no_other_is_taken_for_it(lossless):
    """llguidance tells special tokens by their bytes: without, its masks allowed each for each."""
    grammars = SpeculativeDecoder(*lossless[:2]).maker.grammars
    tools = tools_of(SWITCH, marks=("<user>", "", "<system>"), or_text=True)
    matcher = grammars.matcher(Options(tools=tools))
    user, system = 2, 3
    word, call = grammars("cat"), grammars(CALL)
    assert matcher.allowed([*word, system])[user]
    assert not matcher.allowed([*word, user])[[user, system, 4]].any()
    for n in range(len(call)):
        matcher.forced([*word, user, *call[:n]], 9)
    assert np.flatnonzero(matcher.allowed([*word, user, *call])).tolist() == [system]
    assert matcher.is_complete([*word, user, *call, system])
    alone = grammars.matcher(Options(grammar='start: "a" | <user> "b"'))
    assert [token for token in range(2, 320) if alone.allowed([])[token]] == [user, *grammars("a")]


@pytest.mark.parametrize("sampled", [{}, SAMPLED])
def test_texts_that_may_call_tools_are_plain_decodings(cpu, lossless, sampled):
    """A bias makes the token that is the mark more likely from row to row."""
    tools = tools_of(SWITCH, PERSON, marks=MARKS_OF_TOKENS, or_text=True)
    forms = [{"tools": tools, "logit_bias": {2: x, 5: -x}} for x in (0.0, 1.0, 2.0, 3.0)]
    alone = SpeculativeDecoder(*lossless[:2])
    both = SpeculativeDecoder(*lossless)
    plain = texts(alone, 4, forms, num_draft=0, max_tokens=60, **sampled)
    assert {2 in response.tokens for response in plain} == {True, False}
    assert FAILED not in {response.finish_reason for response in plain}
    origins = Counter[str]()
    for decoder, batch_size, settings in (
        (alone, 1, dict(num_draft=6, lookup=True)),
        (both, 3, dict(num_draft=4)),
        (both, 4, dict(num_draft="auto", lookup=True)),
    ):
        responses = texts(decoder, batch_size, forms, max_tokens=60, **settings, **sampled)
        assert [r.tokens for r in responses] == [r.tokens for r in plain], settings
        origins.update(origin for r in responses for origin in r.origins)
    assert all(origins[kind] > 3 for kind in ("forced", "draft_model", "corrected"))


def test_only_formats_that_are_known_bind():
    for name, fits in (("file-path", True), ("password", True), ("date", False)):
        matcher = bytes_only(1).matcher(Options(json_schema={"type": "string", "format": name}))
        assert matcher.is_complete([byte + 3 for byte in b'"a"']) is fits


def test_what_cannot_be_written_leaves_what_can_and_forced_tokens_keep_their_spaces(demo_pair):
    decoder = SpeculativeDecoder(*demo_pair[:2])
    for regex in ("eintausend\nzwei|zwei", "日本|zwei", r"(a|b)?\n|zwei"):
        assert decoder.generate(PROMPTS[0], regex=regex) == "zwei"
    (response,) = decoder.batch_generate(["x"], json_schema=PERSON, num_draft=8, max_tokens=90)
    assert response.stats.tokens_per_call > 2.5


def test_a_refusal_is_remembered_and_an_end_is_needed(monkeypatch):
    for grammars, reason in ((bytes_only(1), "vocabulary"), (bytes_only(), "no end token")):
        with pytest.raises(InputError, match=reason):
            grammars.matcher(Options(regex=r"[^\s\S]"))
        monkeypatch.setattr(grammars, "_compile", None)
        with pytest.raises(InputError, match=reason):
            grammars.matcher(Options(regex=r"[^\s\S]"))


def test_a_long_chain_of_rules_compiles():
    rules = "".join(f"a{i}: a{i + 1}\n" for i in range(9000))
    assert (
        bytes_only(1).matcher(Options(grammar=f'start: a0\n{rules}a9000: "x"')).is_complete([123])
    )
