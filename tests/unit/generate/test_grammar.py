"""Constrained output: whatever the model says, the text is of the schema, the expression or the grammar."""

import json
import random
import re
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from archetype import Engine, LanguageModel
from archetype.confined.process import ConfinedError
from archetype.errors import ArchetypeError, SpecError
from archetype.families.llama import llama
from archetype.generate import grammar
from archetype.models.build import build
from archetype.settings.generation import Sampling
from archetype.tokenizers import Tokenizer, train_tokenizer
from archetype.tokenizers.sentencepiece import SentencePieceTokenizer
from archetype.tokenizers.token_bytes import TokenBytes
from tests.helpers.examples import every, first_of_each
from tests.helpers.sentencepieces import trained
from tests.helpers.weights import randomize

pytest.importorskip("llguidance", reason="needs llguidance (pip install '.[grammar]')")

TEXT = 'a text with {"keys": [1, 2.5, true, null], "näme": "wörds and 漢字"} of all kinds\n' * 3
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 3},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
EXPRESSION = r"[a-f]{2,6}(-[0-9]{1,3})?"
LARK = 'start: "(" start ")" | "x" NUMBER\nNUMBER: /[0-9]{1,3}/'


@cache
def loaded(kind: str, ends: bool = True, layers: int = 2) -> LanguageModel:
    tokenizer = train_tokenizer(kind, TEXT, 300 if kind == "byte_bpe" else None)  # type: ignore[arg-type]
    size = 304  # more than the tokenizer has: those are never chosen
    if ends:
        tokenizer.eos = (0,)
    spec = llama(num_layers=layers, d_model=16, num_heads=2, d_ff=24, vocab_size=size, context_length=256)
    return LanguageModel(spec, randomize(build(spec), seed=3), tokenizer)  # type: ignore[arg-type]


def texts(lm: LanguageModel, options: dict[str, Any], **engine: Any) -> list[str]:
    """The finished texts of several seeds, in one engine."""
    running = Engine(lm, **engine)
    requests = [
        running.submit("a text", seed=seed, temperature=1.2, max_new_tokens=150, **options) for seed in range(4)
    ]
    results = [request.result() for request in requests]
    finished = [text for text, request in zip(results, requests, strict=True) if request.finish_reason == "stop"]
    assert finished
    return finished


def check(options: dict[str, Any], text: str) -> None:
    match options:
        case {"json_schema": schema}:
            jsonschema.validate(json.loads(text), schema)
        case {"regex": expression}:
            assert re.fullmatch(expression, text), text
        case {"lark": _}:
            inner = text.lstrip("(")
            depth = len(text) - len(inner)
            assert re.fullmatch(r"x[0-9]{1,3}" + r"\)" * depth, inner), text


@pytest.mark.parametrize(
    ("kind", "ends", "options"),
    first_of_each(
        lambda kind, ends, options: [(kind, ends), *options],
        (
            pytest.param(kind, ends, options, id=f"{next(iter(options))}-{kind}-{ends}")
            for kind, ends in (("bytes", True), ("bytes", False), ("byte_bpe", True))
            for options in ({"json_schema": SCHEMA}, {"regex": EXPRESSION}, {"lark": LARK})
        ),
    ),
)
def test_texts_are_of_the_grammar(kind: str, ends: bool, options: dict[str, Any]) -> None:
    lm = loaded(kind, ends)
    generated = texts(lm, options)
    for text in generated:
        check(options, text)
    for engine in ({"lookup": True}, {"draft": loaded(kind, ends, layers=1)}):
        assert texts(lm, options, **engine) == generated


def test_the_same_texts_without_a_grammar_are_not() -> None:
    """A control: what the model says by itself is no JSON."""
    text = loaded("bytes").generate("a text", temperature=1.2, max_new_tokens=50)
    with pytest.raises(ValueError):
        json.loads(text)


@pytest.mark.parametrize("kind", ["bytes", "byte_bpe", "characters", "bpe"])
def test_bytes_of_tokens_are_those_of_the_text(kind: str) -> None:
    tokenizer: Tokenizer = train_tokenizer(kind, TEXT, 300 if "bpe" in kind else None)  # type: ignore[arg-type]
    ids, table = tokenizer.encode(TEXT), [*map(TokenBytes(tokenizer), range(tokenizer.vocab_size))]
    joined = tokenizer.decode(ids[:1]).encode() + b"".join(table[id] for id in ids[1:])
    assert joined.decode() == tokenizer.decode(ids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regex": "[0-9"}, "regex: at 1(8): invalid regex"),
        ({"lark": "start: nothing"}, "lark: "),
        ({"json_schema": {"type": "nope"}}, "json_schema: Invalid type: nope; fix the grammar"),
        ({"json_schema": {"properties": {"a": {"type": "nope"}}}}, "json_schema: properties.a: Invalid type: nope;"),
        (
            {"json_schema": {"anyOf": [{}, {"items": {"enum": 3}}]}},
            "json_schema: anyOf.1.items: enum must be an array;",
        ),
        ({"json_schema": "[" * 9000 + "]" * 9000}, "json_schema: "),
        ({"json_schema": "{"}, "json_schema: "),
        ({"regex": "a", "lark": "b"}, "lark: cannot be combined with regex; use exactly one of them"),
    ],
)
def test_a_wrong_grammar_is_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchetypeError) as caught:
        Engine(loaded("bytes")).submit("a", **options)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_a_grammar_needs_a_tokenizer_of_pieces() -> None:
    bare = LanguageModel(loaded("bytes").spec, loaded("bytes").model)
    with pytest.raises(ArchetypeError, match="regex: needs a tokenizer, and the model's folder has no tokenizer"):
        Engine(bare).submit([1], regex="a")
    words = LanguageModel(bare.spec, bare.model, train_tokenizer("words", [TEXT], None))
    with pytest.raises(ArchetypeError, match="tokenizer: joins words with spaces that no token contains"):
        Engine(words).submit("a text", regex="a")


class Spaced(type(train_tokenizer("bytes", [], None))):  # type: ignore[misc]
    """Puts a space before a text, as SentencePiece does."""

    def encode(self, text: str) -> list[int]:
        ids: list[int] = super().encode(f" {text}")
        return ids


def test_a_tokenizer_that_puts_a_space_before_a_text_follows_a_grammar() -> None:
    lm = loaded("bytes")
    spaced = Spaced()
    spaced.eos = (0,)
    (text, *_) = texts(LanguageModel(lm.spec, lm.model, spaced), {"json_schema": '{"enum": ["glad", "sad"]}'})
    assert json.loads(text) in ("glad", "sad")


def chain(rules: int) -> str:
    """A grammar of Lark, each of whose rules names the next one."""
    return "\n".join(["start: r0", *(f'r{i}: "a" r{i + 1}' for i in range(rules)), f'r{rules}: "a"'])


def nested(definitions: int) -> str:
    """A JSON schema, each of whose definitions is an object that holds the next one."""
    parts: dict[str, Any] = {
        f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(definitions)
    }
    return json.dumps({"$ref": "#/$defs/d0", "$defs": parts | {f"d{definitions}": {"type": "integer"}}})


HARMFUL = {  # what each did to a process that compiled it: a crash, or gigabytes and a core for half a minute
    "rules that name each other": {"lark": chain(4000)},
    "definitions that hold each other": {"json_schema": nested(1500)},
    "stars": {"regex": "a*" * 40_000},
    "nested groups": {"regex": "(" * 30_000 + "a" + ")" * 30_000},
    "nested arrays": {"json_schema": '{"items":' * 10_000 + "{}" + "}" * 10_000},
    "alternatives": {"lark": "start: " + " | ".join(f'"choice {i}"' for i in range(7000))},
    "a long one": {"regex": "a" * 2**17 + "b"},
}


@pytest.mark.parametrize("name", HARMFUL)
def test_a_harmful_grammar_harms_another_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "MAX_SECONDS", 0.5)
    engine, started = Engine(loaded("bytes")), time.process_time()
    with pytest.raises(ArchetypeError) as caught:
        engine.submit("a", **HARMFUL[name])
    (kind,) = HARMFUL[name]
    assert str(caught.value).startswith(f"{kind}: ") and "\n" not in str(caught.value) and len(str(caught.value)) < 700
    assert time.process_time() - started < 0.5
    request = engine.submit("a", regex="x{3}", max_new_tokens=9)  # the engine goes on
    while engine.step():
        pass
    assert request.text == "xxx"


def late(draw: random.Random) -> tuple[str, str, Callable[[int], str]]:
    """A grammar whose states are few at first: a prefix, then ways to read the same letters that multiply."""
    length = draw.randint(0, 20)
    start = f'start: "{"x" * length}" ' if length else "start: "
    letters = [f"a{{{draw.randint(30, 60)}}}(a|b)*a(a|b){{{draw.randint(18, 30)}}}" for _ in range(3)]
    return draw.choice([
        ("lark", f'{start}s\ns: {"s " * draw.randint(2, 4)}| "a"', lambda place: "x" if place < length else "a"),
        ("lark", f'{start}s\ns: s s | t t | "a"\nt: s t | "a"', lambda place: "x" if place < length else "a"),
        ("regex", "|".join(letters), lambda place: "a" if place < 60 else draw.choice("ab")),
    ])  # fmt: skip


def followed(one: grammar.Grammar, sign: Callable[[int], str]) -> int:
    """Tokens of 2,000 for which a grammar was followed."""
    for place in range(2000):
        try:
            one.forbidden(257)
        except SpecError as error:
            assert "grows too large" in str(error) or "takes more than" in str(error)
            return place
        one.consume(ord(sign(place)))
    return 2000


def test_a_grammar_that_grows_later_ends_that_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a time and a memory; the same grammar can be followed again, and another text goes on."""
    monkeypatch.setattr(grammar, "TOKEN_SECONDS", 0.0)
    draw, ended = random.Random(5), 0
    engine = Engine(loaded("bytes", ends=False))
    for kind, source, sign in [late(draw) for _ in range(5)]:
        before, started = memory(), time.thread_time()
        places = [followed(engine.grammar(Sampling.parse({kind: source})), sign) for _ in range(2)]
        assert min(places) > 60 and time.thread_time() - started < 2 and memory() - before < 2**27
        ended += max(places) < 2000
    assert ended > 1
    good = engine.submit("a", regex="a{300}", max_new_tokens=400)
    bad = engine.submit("a", lark='start: start start | "a"', max_new_tokens=2000)
    assert good.result() == "a" * 300
    with pytest.raises(SpecError, match="lark: "):
        bad.result()
    assert bad.finish_reason == "error" and len(bad.tokens) > 64


def memory() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def spelling(kind: str) -> LanguageModel:
    """A model whose tokens are of a kind, and that can end a text."""
    if kind == "sentencepiece":
        tokenizer: Tokenizer = SentencePieceTokenizer(trained({"model_type": "bpe", "byte_fallback": True}))
    else:
        tokenizer = train_tokenizer(kind, [TEXT, "".join(ODD)], 300 if "bpe" in kind else None)  # type: ignore[arg-type]
        tokenizer.eos = (0,)
    spec = llama(num_layers=1, d_model=16, num_heads=2, d_ff=24, vocab_size=tokenizer.vocab_size, context_length=256)
    return LanguageModel(spec, randomize(build(spec), seed=3), tokenizer)  # type: ignore[arg-type]


ODD = (  # texts that a tokenizer, a regular expression or JSON may take for something else
    "", "a", "ab", " a", "a ", "a  b", "\n", "\r\n", "\t", "\0", "a\0b", "\x7f", "\x1b[0m", "\u2028", "\ufeff",
    "\u200d", "é", "e\u0301", "ﬁ", "Å", "①", "漢字", "😀", "👩\u200d👩\u200d👧", "\U0010ffff", "\\d", "a.b*c", "[a]",
    "{2}", "(?i)a", "$^", "#x", "a&&b", "a--b", "~", '"', "'", "\\u0041", "<s>", "▁a", "##a", "<0x41>", "Ġa",
    "true", "A",
)  # fmt: skip


@pytest.mark.parametrize("kind", every(2, ["bytes", "byte_bpe", "characters", "bpe", "sentencepiece"]))
def test_a_choice_is_written_or_refused(kind: str) -> None:
    """Each odd text as the only choice, and some together: the answer is one of them as it is."""
    lm, draw = spelling(kind), random.Random(3)
    engine, written = Engine(lm, slots=8), 0
    for choices in [*((text,) for text in ODD), *(tuple(draw.sample(ODD, 3)) for _ in range(12))]:
        try:
            request = engine.submit("a", choices=choices, max_new_tokens=99, temperature=1.0)
        except SpecError as error:
            assert error.place == "choices" and "remove this choice, or spell it differently" in str(error)
            continue
        assert request.result() in choices and request.finish_reason == "stop", (kind, choices)
        written += 1
    assert written > 9


def test_thousands_of_choices() -> None:
    choices = tuple(f"choice {number}" for number in range(8000))
    assert Engine(loaded("bytes")).submit("a", choices=choices, max_new_tokens=20).result() in choices
    with pytest.raises(SpecError, match=r"choices: has [\d,]+ characters, more than 131,072; use a smaller grammar"):
        Engine(loaded("bytes")).submit("a", choices=[f"choice {number}" for number in range(50_000)])


def test_compiled_grammars_are_kept_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(loaded("bytes"))
    compiled: list[str] = []
    compile = grammar.GrammarCompiler._compiled
    monkeypatch.setattr(
        grammar.GrammarCompiler, "_compiled",
        lambda self, kind, source, *rest: (
            compiled.append(source), replace(compile(self, kind, source, *rest), nbytes=1)
        )[1],
    )  # fmt: skip
    for regex in ("a", "b", "a", "b", "c"):
        assert engine.grammar(Sampling(regex=regex)) is not engine.grammar(Sampling(regex=regex))
    assert compiled == ["a", "b", "c"]
    monkeypatch.setattr(grammar, "MAX_KEPT", 2)
    for regex in ("d", "c", "a"):
        engine.grammar(Sampling(regex=regex))
    assert compiled == ["a", "b", "c", "d", "a"]


def test_a_refused_grammar_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, tried, try_out = Engine(loaded("bytes")), list[str](), grammar._try_out

    def count(language: str, source: str, *rest: str, **options: Any) -> Any:
        tried.append(source)
        return try_out(language, source, *rest, **options)

    monkeypatch.setattr(grammar, "_try_out", count)
    for wrong in ({"regex": "[0-9"}, {"json_schema": {"type": "nope"}}, {"json_schema": "{"}, {"lark": chain(4000)}):
        messages = set()
        for _ in range(3):
            with pytest.raises(SpecError) as caught:
                engine.submit("a", **wrong)
            messages.add(str(caught.value))
        assert len(messages) == 1
    assert len(tried) == 4
    assert engine._grammars is not None and 0 < engine._grammars.nbytes < 4000  # counted with those that are kept


def test_a_large_repetition_is_refused_before_a_text_begins() -> None:
    """No step of the engine waits for its masks, and the second request for none of its work."""
    engine = Engine(loaded("byte_bpe"))
    for _ in range(2):
        started = time.process_time()
        with pytest.raises(SpecError, match=r"^regex: takes more than 0\.25 s and 1 ms for each token of a text; use"):
            engine.submit("a", regex="a{100000}")
    assert time.process_time() - started < 0.1
    assert engine.submit("a", regex="a{1000}", max_new_tokens=5).result().strip("a") == ""


def test_a_grammar_is_compiled_beside_another() -> None:
    busy = grammar._free.get()  # with which a process of a large grammar is at work
    try:
        assert Engine(loaded("bytes")).submit("a", regex="x{3}", max_new_tokens=9).result() == "xxx"
    finally:
        grammar._free.put(busy)


def test_a_pattern_and_a_length_hold_together() -> None:
    """Of a schema's text; some compilers leave one of them out."""
    draw = random.Random(0)
    for pattern in ("^[a-c]+$", "^(ab|c)*d?$", "[xy]", "^a", "^[a-z]{2,}(-[a-z]+)*$"):
        low = draw.randint(2, 4)
        schema = {"type": "string", "pattern": pattern, "minLength": low, "maxLength": low + draw.randint(0, 4)}
        for text in texts(loaded("byte_bpe"), {"json_schema": schema}):
            jsonschema.validate(json.loads(text), schema)


def test_a_grammar_whose_trial_was_late_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs may have had the processor."""
    engine, try_out = Engine(loaded("bytes")), grammar._try_out

    def late(*_: Any, **__: Any) -> None:
        raise ConfinedError("Late", "takes longer than 2 s")

    monkeypatch.setattr(grammar, "_try_out", late)
    with pytest.raises(SpecError, match="regex: takes longer than 2 s; use a smaller grammar, or try again"):
        engine.submit("a", regex="x{3}")
    monkeypatch.setattr(grammar, "_try_out", try_out)
    assert engine.submit("a", regex="x{3}", max_new_tokens=9).result() == "xxx"


NESTED: dict[str, Any] = {
    "type": "object", "required": ["a", "b"], "additionalProperties": False,
    "properties": {"a": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}, "b": SCHEMA},
}  # fmt: skip


@pytest.mark.parametrize("kind", ["bytes", "byte_bpe"])
def test_json_ends_whatever_the_model_likes(kind: str) -> None:
    """A model that likes nothing better than white space, and one that is random; free, the first never ends."""
    lm = loaded(kind)
    assert lm.tokenizer is not None
    table = [*map(TokenBytes(lm.tokenizer), range(lm.tokenizer.vocab_size))]
    likes = {id: 50.0 for id, data in enumerate(table) if data and not data.strip()}
    engine = Engine(lm)
    for options in ({"logit_bias": likes}, {"temperature": 1.5}):
        for seed in range(2):
            request = engine.submit("a", json_schema=NESTED, seed=seed, max_new_tokens=700, **options)
            jsonschema.validate(json.loads(request.result()), NESTED)
            assert request.finish_reason == "stop"
    free = engine.submit("a", json_schema=NESTED, json_whitespace="free", max_new_tokens=200, logit_bias=likes)
    assert free.result().strip() == "{" and free.finish_reason == "length"


def test_json_may_be_compact_spaced_or_indented() -> None:
    lm, value = loaded("bytes"), {"a": [True, False], "b": {"name": "x", "age": 3, "kind": "cat"}}
    assert lm.tokenizer is not None
    written = [json.dumps(value, separators=(",", ":")), *(json.dumps(value, indent=one) for one in (None, 2, 4, "\t"))]
    wasteful = ['{  "a": [true]', '{\n\n"a": [true]', '{ \n"a": [true]', '{"a": [true ,  false]']
    for text in (*written, *wasteful):
        for whitespace in ("bounded", "free"):
            one = Engine(lm).grammar(Sampling.parse({"json_schema": NESTED, "json_whitespace": whitespace}))
            assert one is not None
            ids, place = lm.tokenizer.encode(text), 0
            while place < len(ids) and not bool(one.forbidden(lm.tokenizer.vocab_size)[ids[place]]):
                one.consume(ids[place])
                place += 1
            assert (place == len(ids)) == (text in written or whitespace == "free"), (text, whitespace)
