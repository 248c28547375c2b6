"""Addition of tokens to a tokenizer."""

import json
from collections.abc import Sequence

from archetype.errors import DataError
from archetype.tokenizers.fast import fast_definition
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer
from archetype.tokenizers.tokenizer import Tokenizer, check_utf8


def add_tokens(tokenizer: Tokenizer, names: Sequence[str]) -> HuggingFaceTokenizer:
    """Convert the tokenizer to a tokenizer.json with additional tokens at the end of its vocabulary.

    Tokens in angle or square brackets become special tokens, which decoding skips.

    Raises:
        DataError: the tokenizer cannot be written as a tokenizer.json, or a token is empty or already exists.
    """
    if isinstance(tokenizer, HuggingFaceTokenizer):
        definition, config = dict(tokenizer.definition), tokenizer.config
    else:
        converted, config = fast_definition(tokenizer), {}
        if converted is None:
            cause = f"cannot add tokens to a tokenizer of kind {tokenizer.kind}"
            raise DataError("add_tokens", cause, "use a model with a tokenizer.json")
        definition = converted
    first, known = tokenizer.vocab_size, {token.get("content") for token in definition.get("added_tokens") or []}
    known |= {*definition["model"].get("vocab", ())} if isinstance(definition["model"].get("vocab"), dict) else set()
    for index, name in enumerate(names):
        if not check_utf8(name) or name in known or name in names[:index]:
            cause = f"{name!r:.40} is already a token" if name else "a name is empty"
            raise DataError("add_tokens", cause, "remove it")
    definition["added_tokens"] = [*(definition.get("added_tokens") or []), *(
        {"id": first + index, "content": name, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": name[0] + name[-1] in ("<>", "[]")} for index, name in enumerate(names)
    )]  # fmt: skip
    wider = HuggingFaceTokenizer(json.dumps(definition, ensure_ascii=False).encode(), config or None)
    wider.bos, wider.eos, wider.adds_bos = tokenizer.bos, tokenizer.eos, tokenizer.adds_bos
    for index, name in enumerate(names):
        # the library gives ids in order, and an earlier token may match inside the name
        if wider.encode(name) != [first + index]:
            raise DataError("add_tokens", f"{name!r:.40} is not encoded as one token", "choose another name")
    return wider
