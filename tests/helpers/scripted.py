"""Models that answer by heart: after each prompt that they know, a text, token by token."""

from collections.abc import Mapping, Sequence

import torch
from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteLevel

from archetype import LanguageModel
from archetype.models.build import build
from archetype.models.ngram.spec import NGram
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.chat_template import ChatTemplate
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer

END = "</s>"


def byte_tokenizer(*special: str) -> Tokenizer:
    """A token for each byte, and for each of some special texts; the last of them ends a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({sign: id for id, sign in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    backend.decoder = ByteLevel()  # type: ignore[assignment]
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in (*special, END)])
    return HuggingFaceTokenizer(backend.to_str().encode(), {"eos_token": END})


def scripted(
    answers: Mapping[str, str], tokenizer: Tokenizer, template: ChatTemplate | None, window: int = 40
) -> LanguageModel:
    """An n-gram model of closed form: each hidden unit knows the newest tokens of one place, and what follows there.

    Args:
        answers: what is written after each prompt; the end of the text follows.
        tokenizer: whose first `eos` ends texts.
        template: of the model.
        window: tokens by which it knows where it is.
    """
    places: dict[tuple[int, ...], int] = {}
    for prompt, answer in answers.items():
        ids = tokenizer.encode_with_special_tokens(prompt)
        for next in [*tokenizer.encode_with_special_tokens(answer), tokenizer.eos[0]]:
            assert places.setdefault(tuple(ids[-window:]), next) == next, "a longer window tells these places apart"
            ids.append(next)
    size = tokenizer.vocab_size
    spec = NGram(vocab_size=size, context_length=8192, n=window, d_model=size, hidden=(len(places),))
    model = build(spec)
    model.embedding.token.weight.data = torch.eye(size)  # type: ignore[attr-defined, union-attr]
    (hidden,), head = model.hidden, model.lm_head  # type: ignore[misc, union-attr]
    hidden.weight.data.zero_()  # type: ignore[union-attr]
    head.weight.data.zero_(), head.bias.data.zero_()  # type: ignore[operator, union-attr]
    for unit, (newest, next) in enumerate(places.items()):
        columns = _columns(newest, window, size)
        hidden.weight.data[unit, columns] = 30.0  # type: ignore[index, union-attr]
        hidden.bias.data[unit] = -30.0 * (len(newest) - 0.5)  # type: ignore[index, union-attr]
        head.weight.data[next, unit] = 30.0  # type: ignore[index, union-attr]
        head.bias.data[next] += 30.0  # of a unit that is off, which is -1  # type: ignore[index, union-attr]
    return LanguageModel(spec, model.eval(), tokenizer, template=template)  # type: ignore[arg-type]


def _columns(newest: Sequence[int], window: int, size: int) -> list[int]:
    """The features that are 1 where these are the newest tokens."""
    return [place * size + id for place, id in enumerate(newest, start=window - len(newest))]
