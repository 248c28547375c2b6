"""Constrained output: whatever the model says, the text is of the schema, the expression or the grammar."""

import json
import re
import time
from functools import cache
from typing import Any

import jsonschema
import pytest

from archetype import Engine, LanguageModel
from archetype.errors import ArchetypeError
from archetype.families.llama import llama
from archetype.generate import grammar
from archetype.generate.settings import Sampling
from archetype.models.build import build
from archetype.tokenizers import Tokenizer, train_tokenizer
from archetype.tokenizers.token_bytes import TokenBytes
from tests.helpers.weights import randomize

pytest.importorskip("llguidance", reason="needs llguidance (pip install 'archetype-lm[grammar]')")

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


@pytest.mark.parametrize(("kind", "ends"), [("bytes", True), ("bytes", False), ("byte_bpe", True)])
@pytest.mark.parametrize(
    "options", [{"json_schema": SCHEMA}, {"regex": EXPRESSION}, {"lark": LARK}], ids=lambda options: next(iter(options))
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
        ({"json_schema": {"type": "nope"}}, "json_schema: Invalid type: nope; fix it"),
        ({"json_schema": "{"}, "json_schema: "),
        ({"regex": "a", "lark": "b"}, "lark: and regex cannot both constrain a text; give one of them"),
    ],
)
def test_a_wrong_grammar_is_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchetypeError) as caught:
        Engine(loaded("bytes")).submit("a", **options)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_a_grammar_needs_a_tokenizer_of_pieces() -> None:
    bare = LanguageModel(loaded("bytes").spec, loaded("bytes").model)
    with pytest.raises(ArchetypeError, match="regex: needs a tokenizer, and the model's folder has none"):
        Engine(bare).submit([1], regex="a")
    words = LanguageModel(bare.spec, bare.model, train_tokenizer("words", [TEXT], None))
    with pytest.raises(ArchetypeError, match="tokenizer: joins words by spaces that no token holds"):
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


def test_compiled_grammars_are_kept_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(loaded("bytes"))
    compiled: list[str] = []
    compile = grammar.GrammarCompiler._compiled
    monkeypatch.setattr(
        grammar.GrammarCompiler, "_compiled",
        lambda self, kind, source: (compiled.append(source), compile(self, kind, source))[1],
    )  # fmt: skip
    for regex in ("a", "b", "a", "b", "c"):
        assert engine.grammar(Sampling(regex=regex)) is not engine.grammar(Sampling(regex=regex))
    assert compiled == ["a", "b", "c"]
    monkeypatch.setattr(grammar, "MAX_KEPT", 2)
    for regex in ("d", "c", "a"):
        engine.grammar(Sampling(regex=regex))
    assert compiled == ["a", "b", "c", "d", "a"]
