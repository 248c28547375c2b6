"""Pre-tokenizers of byte-level BPE that llama.cpp knows by name (src/llama-vocab.cpp), and the published forms of them.

A pre-tokenizer is one regular expression, or several that cut one after the other. Where llama.cpp's expressions are
equal to those of published tokenizers, they have the published spelling here.
"""

from typing import Any

# The contractions of published tokenizers also match other forms of a letter, such as U+017F; llama.cpp's do not.
FOLDED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LETTERS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
DIGIT, THREE = r"\p{N}", r"\p{N}{1,3}"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
WORDS = rf"{FOLDED}|{WORD}"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CHINESE = "[一-龥぀-ゟ゠-ヿ]+"
MARKED = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
).replace('\\"', '"')
# llama.cpp takes every letter beyond ASCII for a capital and a small one
CASED = (
    r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+",
    r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*",
)
PATHS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPACES = "|".join(rf"\s{{{length}}}(?!\S)" for length in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
GPT2 = "gpt-2"  # named ByteLevel in a tokenizer.json
CUTS: dict[str, tuple[str, ...]] = {
    GPT2: (GPT2_WORDS,),
    "llama-bpe": (rf"{WORDS}|{THREE}|{REST}",),
    "qwen2": (rf"{WORDS}|{DIGIT}|{REST}",),
    "qwen35": (
        rf"{FOLDED}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|{DIGIT}|{REST}".replace(r"^\s\p{L}", r"^\s\p{L}\p{M}"),
    ),
    "smollm": (DIGIT, GPT2_WORDS),
    "deepseek-v3": (THREE, CHINESE, MARKED),
    "minicpm5": (THREE, rf"{WORDS}|\p{{N}}+|{REST}"),
    "seed-coder": (rf"{LETTERS}|{WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",),
    "jais-2": (rf"{LETTERS}|{WORD}|{THREE}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{SPACES}|\s{{1}}",),
    "laguna": (r"[^\n]+|[\n]+", rf"{LETTERS}|{WORD}|{DIGIT}|{REST}"),
    "bailingmoe": (
        rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{WORD}|{DIGIT}|" + REST.replace(r"\s*[\r\n]+", r"\s*[\r\n]"),
    ),
    "spark2_5": (THREE, CHINESE, MARKED.replace(r"+[\r\n]*|\s*[\r\n]+|", r"+|[\r\n]|"), DIGIT),
    "gpt-4o": (f"{CASED[0]}{LETTERS}?|{CASED[1]}{LETTERS}?|{THREE}|{PATHS}",),
    "tekken": (f"{CASED[0]}|{CASED[1]}|{DIGIT}|{PATHS}",),
}
# Pre-tokenizers with which llama.cpp only comes close to the published one, and the published expressions.
CAPITALS = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
SMALL = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
PUBLISHED_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{CAPITALS}]*[{SMALL}]+",
    rf"[^\r\n\p{{L}}\p{{N}}]?[{CAPITALS}]+[{SMALL}]*",
)
CLOSE: dict[str, tuple[str, ...]] = {
    "gpt-4o": (f"{PUBLISHED_CASED[0]}{FOLDED}?|{PUBLISHED_CASED[1]}{FOLDED}?|{THREE}|{PATHS}",),
    "tekken": (f"{PUBLISHED_CASED[0]}|{PUBLISHED_CASED[1]}|{DIGIT}|{PATHS}",),
}
# Further names of the same pre-tokenizers.
SAME_CUTS = {
    name: cut
    for cut, names in {
        GPT2: "phi-2 jina-es jina-de mpt olmo gigachat jina-v2-code jina-v2-de jina-v2-es a.x-4.0 mellum modern-bert "
        "exaone4 jais trillion granite-docling jina-v1-en roberta-bpe",
        "llama-bpe": "llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano smaug-bpe dbrx chatglm-bpe "
        "glm4 glm5",
        "qwen2": "deepseek-r1-qwen megrez kormo f2llmv2 stablelm2 hunyuan solar-open grok-2",
        "smollm": "starcoder refact command-r codeshell exaone minerva-7b mellum2",
        "deepseek-v3": "hunyuan-dense joyai-llm hy_v4",
        "bailingmoe": "bailingmoe2 llada-moe",
        "gpt-4o": "llama4 kanana2 talkie minimax-m2",
    }.items()
    for name in names.split()
}
MASK = "<mask>"
# Pre-tokenizers whose <mask> strips the spaces before it, as RoBERTa's does.
MASK_TAKES_SPACES = ("jina-v2-code", "jina-v2-de", "jina-v2-es")
LLAMA3 = ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano")
ADD_BOS = (*LLAMA3, "tekken")  # bos is added unless a key says otherwise
IGNORE_MERGES = (*LLAMA3, "tekken", "glm4", "glm5", "minicpm5")  # a word that is a token is not merged


def canonical(pre: str | None) -> str | None:
    """Return the name under which a pre-tokenizer is in `CUTS`."""
    return SAME_CUTS.get(pre or "", pre)


def llama_cpp_cuts(pre: str | None) -> tuple[str, ...] | None:
    """Return llama.cpp's own expressions of a pre-tokenizer; None if it is not known here."""
    cuts = CUTS.get(canonical(pre) or "")
    return None if cuts is None else tuple(cut.replace(FOLDED, LETTERS) for cut in cuts)


def name_of(pre_tokenizer: Any) -> str | None:
    """Return llama.cpp's name for the pre-tokenizer of a tokenizer.json; None if it has no such pre-tokenizer."""
    match pre_tokenizer:
        case {"type": "ByteLevel"} as step:
            steps = [step]
        case {"type": "Sequence", "pretokenizers": [*steps]}:
            pass
        case _:
            return None
    *before, last = steps
    match last:
        case {"type": "ByteLevel", "add_prefix_space": False, **rest}:
            cuts = [GPT2_WORDS] if rest.get("use_regex", True) else []
        case _:
            return None
    expressions = [_expression(step) for step in before]
    if None in expressions:
        return None
    expected = tuple(filter(None, expressions)) + tuple(cuts)
    return next((name for name, known in (CUTS | CLOSE).items() if known == expected), None)


def _expression(step: Any) -> str | None:
    match step:
        case {"type": "Split", "pattern": {"Regex": str(pattern)}, **rest} if rest.get(
            "behavior", "Isolated"
        ) == "Isolated" and not rest.get("invert", False):
            return pattern.replace("\r", r"\r").replace("\n", r"\n")
        case {"type": "Digits", "individual_digits": True}:
            return DIGIT
        case _:
            return None
