"""Constrained output: only tokens that a JSON schema, a regular expression or a Lark grammar allows, by llguidance."""

import threading
from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archetype.confined.process import Confined, ConfinedError
from archetype.distribution import install_command
from archetype.errors import DataError, SpecError
from archetype.generate.settings import Sampling
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.token_bytes import TokenBytes

KINDS = ("json_schema", "regex", "lark")
MAX_SOURCE = 2**17  # characters of a grammar
MAX_KEPT = 2**19  # of those that are kept compiled together, which take up to 1,000 times as much memory
MAX_SECONDS = 2.0  # of the processor's time, to compile one and follow it a little
_try_out = Confined("archetype.confined.grammars", 2**29)


class Grammar:
    """Where one text stands in its grammar.

    Args:
        matcher: llguidance's, after the text so far.
        num_tokens: of the tokenizer; ids beyond them are never allowed.
    """

    def __init__(self, matcher: Any, num_tokens: int) -> None:
        self._matcher, self._num_tokens = matcher, num_tokens

    @property
    def is_complete(self) -> bool:
        """Whether the text can only end here."""
        return bool(self._matcher.is_stopped())

    def forbidden(self, vocab_size: int) -> Tensor:
        """True for each of the vocabulary's tokens that cannot follow, (V,)."""
        bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little")
        forbidden = torch.ones(vocab_size, dtype=torch.bool)
        count = min(vocab_size, self._num_tokens)
        forbidden[:count] = torch.from_numpy(bits[:count] == 0)
        return forbidden

    def consume(self, token: int) -> None:
        """Go on after a token that was allowed."""
        self._matcher.consume_token(token)

    def fork(self) -> "Grammar":
        """Another one at the same place."""
        return Grammar(self._matcher.deep_copy(), self._num_tokens)


class GrammarCompiler:
    """Makes grammars for the tokens of one tokenizer.

    Raises:
        DataError: llguidance is not installed, or a token's text depends on the tokens beside it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        try:
            import llguidance
        except ImportError:
            raise DataError("llguidance", "is not installed", install_command("grammar")) from None
        if tokenizer.kind == "words":
            cause = "joins words by spaces that no token holds, so that no grammar can be followed"
            raise DataError("tokenizer", cause, "use a model of bytes, characters or pieces of words")
        self._library, self._num_tokens = llguidance, tokenizer.vocab_size
        ends = tokenizer.eos or (tokenizer.vocab_size,)  # without a token that ends texts, one that is never chosen
        wrapped = llguidance.TokenizerWrapper(_Vocabulary(tokenizer, ends))
        self._tokenizer = llguidance.LLTokenizer(wrapped, eos_token=list(ends))
        self._kept: OrderedDict[tuple[str, str], Grammar] = OrderedDict()  # at their starts, the newest last
        self._lock = threading.Lock()

    def compile(self, sampling: Sampling) -> Grammar:
        """The grammar that the settings name, at its start.

        Raises:
            SpecError: it is wrong.
        """
        (kind, source), *others = [(kind, text) for kind in KINDS if (text := getattr(sampling, kind)) is not None]
        if others:
            raise SpecError(others[0][0], f"and {kind} cannot both constrain a text", "give one of them")
        with self._lock:
            if (grammar := self._kept.pop((kind, source), None)) is None:
                grammar = self._compiled(kind, source)
            self._kept[kind, source] = grammar  # as the newest
            while sum(len(text) for _, text in self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
            return grammar.fork()

    def _compiled(self, kind: str, source: str) -> Grammar:
        """Compile what another process has followed without harm: a compiler that fails here would end all requests."""
        if len(source) > MAX_SOURCE:
            raise SpecError(kind, f"has {len(source):,} characters, more than {MAX_SOURCE:,}", "give a smaller one")
        try:
            fault = _try_out(kind, source, seconds=MAX_SECONDS, max_bytes=MAX_SOURCE)
        except ConfinedError as error:
            is_wrong = error.kind == "ValueError"
            raise SpecError(kind, str(error), "fix it" if is_wrong else "give a smaller one") from None
        if fault is not None:
            raise SpecError(kind, fault, "fix it")
        text = getattr(self._library.LLMatcher, f"grammar_from_{kind}")(source)
        matcher = self._library.LLMatcher(self._tokenizer, text, log_level=0)
        if matcher.is_error():
            raise SpecError(kind, matcher.get_error(), "fix it")
        return Grammar(matcher, self._num_tokens)


class _Vocabulary:
    """A tokenizer as llguidance asks for it: the bytes of every token, and the tokens of a text."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, ends: tuple[int, ...]) -> None:
        self.tokenizer, self.eos_token_id = tokenizer, ends[0]
        special = {*tokenizer.special_tokens.values(), *ends}
        self.special_token_ids = sorted(special)
        bytes_of = TokenBytes(tokenizer)
        self.tokens = [b"" if id in special else bytes_of(id) for id in range(tokenizer.vocab_size)]
        self.tokens += [b""] * (max(ends) + 1 - len(self.tokens))
        self._ids = {token: id for id, token in enumerate(self.tokens) if token}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: str | bytes) -> list[int]:
        """Tokens of exactly these bytes: the tokenizer's own, unless it puts a space before a text, or the longest."""
        data = text.encode() if isinstance(text, str) else text
        ids = self.tokenizer.encode(data.decode(errors="ignore"))
        if b"".join(self.tokens[id] for id in ids) == data:
            return ids
        ids = []
        while data:
            lengths = range(min(len(data), self._longest), 0, -1)
            if (token := next((data[:length] for length in lengths if data[:length] in self._ids), b"")) == b"":
                break  # no token has this byte
            ids.append(self._ids[token])
            data = data[len(token) :]
        return ids
