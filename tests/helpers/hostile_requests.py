"""Bodies of requests that are made to harm: one field of one path, deep, wide, many, long or odd."""

import base64
import io
import random
from collections.abc import Callable, Iterator
from typing import Any

from PIL import Image

Case = tuple[str, str, dict[str, Any]]  # what it is, its path, and its body
TEXT = {"prompt": "Once", "max_tokens": 5, "temperature": 0}
CHAT = {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 5}


def nested(depth: int, inner: Any, wrap: Callable[[Any], Any]) -> Any:
    """Something in something in something."""
    for _ in range(depth):
        inner = wrap(inner)
    return inner


def picture(width: int, height: int, mode: str = "RGB") -> str:
    """A black picture as a data address."""
    file = io.BytesIO()
    Image.new(mode, (width, height)).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def grammars(size: int) -> Iterator[tuple[str, str | dict[str, Any]]]:
    """A field of a body, and a constraint whose depth, width or ambiguity grows with a size."""
    yield "guided_grammar", "start: r0\n" + "\n".join(f'r{n}: "a" r{n + 1}' for n in range(size)) + f'\nr{size}: "a"'
    yield "guided_grammar", "start: " + " | ".join(f'"choice {n}"' for n in range(size))
    yield "guided_grammar", f'start: "{"x" * min(size, 70)}" s\ns: s s | s s s | "a"'
    yield "guided_regex", "a*" * size
    yield "guided_regex", "(" * size + "a" + ")" * size
    yield "guided_regex", f"(a|b)*a(a|b){{{size}}}"
    yield "guided_regex", f"(([a-z]{{1,{size}}}){{1,{size}}}){{1,{size}}}"
    yield "guided_json", '{"items":' * size + "{}" + "}" * size
    yield "guided_json", {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(size)}}
    yield "guided_json", {"anyOf": [{"type": "string", "pattern": f"^[a-z]{{1,{n}}}x{n}$"} for n in range(1, size)]}
    patterns = {f"^[a-z]{{1,{n % 40 + 2}}}[0-9]{{3}}x{n}$": {"type": "string"} for n in range(size)}
    yield "guided_json", {"type": "object", "patternProperties": patterns}
    yield "guided_json", {"enum": [f"value {n}" for n in range(size)]}
    yield "guided_json", {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * min(size, 99)}}}
    yield "guided_choice", [f"choice {n}" for n in range(size)]


def cases(draw: random.Random, most: int = 30_000) -> Iterator[Case]:
    """Each kind once, its size drawn.

    Args:
        draw: the sizes.
        most: of them.
    """

    def size(limit: int = most) -> int:
        return int(min(limit, most) ** draw.uniform(0.3, 1.0))

    for number, (field, _) in enumerate(grammars(1)):
        _, rule = list(grammars(n := size(10_000)))[number]
        yield f"{field} of {n}", "/v1/completions", TEXT | {field: rule}
    completions = {
        "prompt": "a" * size(900_000), "stop": ["a" * size()] * 16,
        "logit_bias": dict.fromkeys(map(str, range(size())), 1.0),
        "stop_token_ids": list(range(size())), "n": size(2**31), "max_tokens": size(2**40), "min_tokens": size(2**40),
        "logprobs": size(), "top_k": size(2**62), "metadata": nested(min(size(), 150), 0, lambda inner: [inner]),
        "user": "u" * size(900_000), "seed": -size(2**60), "temperature": 1e308, "repetition_penalty": 1e-308,
    }  # fmt: skip
    for field, value in completions.items():
        yield field, "/v1/completions", TEXT | {field: value}
    yield "prompts of ids", "/v1/completions", TEXT | {"prompt": [[1]] * size()}
    yield "choices with log-probabilities", "/v1/completions", TEXT | {
        "n": draw.randint(1, 128), "max_tokens": size(500), "logprobs": draw.randint(0, 20), "ignore_eos": True,
        "prompt": [1] * 9, "stream": draw.random() < 0.5,
    }  # fmt: skip
    yield "echo", "/v1/completions", TEXT | {"prompt": ["a" * size(400)] * 100, "echo": True, "logprobs": 20}
    yield "messages", "/v1/chat/completions", CHAT | {"messages": CHAT["messages"] * size()}
    yield "beams", "/v1/completions", TEXT | {"model": "pairs", "use_beam_search": True, "prompt": ["a " * 9] * 100}
    yield "embeddings", "/v1/embeddings", {"model": "bert", "input": ["a " * size(30)] * size(4000)}
    yield "masks", "/api/fill", {"model": "bert", "text": "[MASK]" * size(60), "top": 100}
    yield "texts to classify", "/v1/classify", {"model": "classes", "input": ["a" * size(60)] * size(4000)}
    side = size(7000)
    part = {"type": "image_url", "image_url": {"url": picture(side, side)}}
    yield f"a picture of {side}", "/v1/classify", {"model": "vit", "input": [part]}
    yield "pictures", "/v1/classify", {"model": "vit", "input": [part | {"image_url": {"url": picture(9, 9)}}] * 2000}
    yield "a look inside", "/api/inspect", {"text": "a" * size(200)}
    yield "detokenize", "/detokenize", {"tokens": [5] * size(200_000)}
    yield "tokenize", "/tokenize", {"prompt": "ab \n" * size(200_000), "return_token_strs": True}
    for preset in ("bigbird-tiny", "longformer-tiny", "sparse-fixed-tiny", "llama-tiny", "mamba-tiny"):
        asked = {"preset": preset, "length": size(2**31), "dtype": "bfloat16"}
        yield f"positions of {preset}", "/api/spec/position", asked
        yield f"costs of {preset}", "/api/spec/evaluate", asked | {"batch": size(2**31)}
    deep = nested(size(5000), "x", lambda inner: f"[{inner}]")
    yield "a deep specification", "/api/spec/evaluate", {"source": deep}
    yield "a wide specification", "/api/spec/evaluate", {"source": "\n".join(f"k{n}: {n}" for n in range(size()))}
    many = {"num_layers": size(2**31)}
    yield "a transplant of many layers", "/api/transplant", {"changes": [f"num_layers={size(2**31)}"]}
    long = {"text": "a cat " * size(150_000), "changes": ["layers[0].feedforward.d_ff=8"], "compare": True}
    yield "a long text of a transplant", "/api/transplant", long
    yield "many layers", "/api/spec/evaluate", {"preset": "llama-tiny", "set": many}
