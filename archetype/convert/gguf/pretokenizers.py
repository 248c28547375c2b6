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
# the letters with a case, as DeepSeek's first tokenizers list them
CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-"
    "\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
MARKS = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001-\u3002"
EAST = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff&&[^\s]]+"
UNSPACED = (  # scripts without spaces
    "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-"
    "\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
HAN = (
    "\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f"
    "\U0002b820-\U0002ceaf\U0002ceb0-\U0002ebef\uf900-\ufaff\U0002f800-\U0002fa1f"
)
LETTERS_AND_MARKS = rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+{LETTERS}?"
# groups of three digits from the right, the first of which llama.cpp does not cut from the text before it
FROM_RIGHT = r"[^\p{N}]*\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
YOUTU = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-"
    "\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)
ONE_LETTER, WITH_MARKS = r"[\p{L}])(", r"[\p{L}\p{M}])("
SENTENCES = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"
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
    "exaone-moe": (
        rf"{FOLDED}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|{DIGIT}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    ),
    "ufakzeka": (f"{WORD}|{DIGIT}|{REST}",),
    "bloom": (SENTENCES,),
    "viking": (SENTENCES, DIGIT),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]"),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", GPT2_WORDS, "[0-9][0-9][0-9]"),
    "chameleon": (
        "<sentinel:[0-9]+>",
        "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        r"([\t\n]|    |  )",
        DIGIT,
        r"[\p{P}!-/:-@\[-`{-~]",
        GPT2_WORDS,
    ),
    "deepseek-llm": (r"[\r\n]", rf"\s?[{CASED_LETTERS}]+", rf"\s?[{MARKS}]+", r"\s+$", EAST, r"\p{N}+"),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EAST, DIGIT),
    "superbpe": (r"\p{N}+", "(?=([0-9]{3})+(?![0-9]))"),
    "granite-embed-multi-97m": (
        "|".join(f"{cut.replace(ONE_LETTER, WITH_MARKS)}{LETTERS}?" for cut in CASED) + f"|{THREE}|{PATHS}",
    ),
    "afmoe": (FROM_RIGHT, UNSPACED, MARKED),
    "tiny_aya": (FROM_RIGHT, f"{LETTERS_AND_MARKS}|{THREE}|{PATHS}"),
    "youtu": (YOUTU, f"{LETTERS_AND_MARKS}|{DIGIT}|{PATHS}"),
    "kimi-k2": (rf"[{HAN}]+|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{HAN}]]+{LETTERS}?|{THREE}|{REST}",),
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
NOT_HAN = tuple(cut.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]") for cut in PUBLISHED_CASED)
CLOSE: dict[str, tuple[str, ...]] = {
    "kimi-k2": (rf"[\p{{Han}}]+|{NOT_HAN[0]}{FOLDED}?|{NOT_HAN[1]}{FOLDED}?|{THREE}|{REST}",),
    "tiny_aya": (
        r"\d{1,3}(?=(?:\d{3})*\b)",
        f"{PUBLISHED_CASED[0]}{FOLDED}?|{PUBLISHED_CASED[1]}{FOLDED}?|{THREE}|{PATHS}",
    ),
    "gpt-4o": (f"{PUBLISHED_CASED[0]}{FOLDED}?|{PUBLISHED_CASED[1]}{FOLDED}?|{THREE}|{PATHS}",),
    "tekken": (f"{PUBLISHED_CASED[0]}|{PUBLISHED_CASED[1]}|{DIGIT}|{PATHS}",),
}
# Pre-tokenizers without a published form as plain expressions: read, and written again.
UNPUBLISHED = (
    "default", "falcon", "chameleon", "deepseek-llm", "deepseek-coder", "superbpe", "granite-embed-multi-97m", "afmoe",
    "youtu",
)  # fmt: skip
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
        "bloom": "poro-chat gpt3-finnish",
        "tiny_aya": "cohere2moe",
        "gpt-4o": "llama4 kanana2 talkie minimax-m2",
    }.items()
    for name in names.split()
}
# Names with which texts are not cut into words, and spaces are ▁.
SPACED = ("gemma4", "granite-embed-multi-311m", "sarvam-moe")
ALWAYS_BOS = SPACED[:2]  # BOS is always added, regardless of the key
MASK = "<mask>"
# Pre-tokenizers whose <mask> strips the spaces before it, as RoBERTa's does.
MASK_TAKES_SPACES = ("jina-v2-code", "jina-v2-de", "jina-v2-es")
LLAMA3 = ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano")
ADD_BOS = (*LLAMA3, "tekken", "chameleon")  # bos is added unless a key says otherwise
IGNORE_MERGES = (
    *LLAMA3,
    "tekken",
    "glm4",
    "glm5",
    "minicpm5",
    "youtu",
    "granite-embed-multi-97m",
)  # a word that is a token is not merged


def canonical(pre: str | None) -> str | None:
    """Return the name of a pre-tokenizer in `CUTS`."""
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
