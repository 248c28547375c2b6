"""Constrained decoding: only tokens allowed by a JSON schema, regular expression, grammar or list, with llguidance."""

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256
from queue import LifoQueue
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archetype.confined.process import Confined, ConfinedError
from archetype.distribution import install_command
from archetype.errors import DataError, SpecError
from archetype.generate.vocabulary import Vocabulary, alternatives
from archetype.settings.generation import BOUNDED_WHITESPACE, Sampling
from archetype.tokenizers import Tokenizer

KINDS = ("json_schema", "regex", "lark", "choices")
MAX_SOURCE = 2**17  # characters of a grammar
MAX_BYTES = 2**26  # bytes of one compiled grammar
MAX_KEPT = 2**28  # bytes of all cached grammars
MAX_SECONDS = 2.0  # CPU time to compile a grammar and try it out
TEXT_SECONDS, TOKEN_SECONDS = 0.25, 0.001  # CPU time for a whole sequence, and for each of its tokens
SLOW = f"takes more than {TEXT_SECONDS:g} s and {1e3 * TOKEN_SECONDS:g} ms for each token of a text"
FEWER_WAYS = "use a less ambiguous grammar"
TRIED = 32  # tokens generated to try out a compiled grammar
# what each byte of a mask adds to the logits of eight tokens
OF_BITS = np.where(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), -0.0, -np.inf)
OF_BITS = OF_BITS.astype(np.float32)
LANES = 2  # grammars compiled concurrently, so that a large one does not block the next
_free = LifoQueue[Confined]()  # last in, first out: the process used last is already running
for _ in range(LANES):
    _free.put(Confined("archetype.confined.grammars", 2**29))


def _try_out(*args: Any, seconds: float, max_bytes: int) -> Any:
    # compiles and tries out a grammar in a free subprocess; same arguments and errors as `Confined`
    lane = _free.get()
    try:
        return lane(*args, seconds=seconds, max_bytes=max_bytes)
    finally:
        _free.put(lane)


@dataclass(eq=False)
class Compiled:
    # all sequences with this grammar share it

    kind: str  # the setting that contains it
    matcher: Any  # an llguidance matcher in its initial state; its copies share one lexer cache
    nbytes: int
    is_spent: bool = False  # whether it has reached its memory limit, so that no sequence can use it any more


@dataclass(frozen=True)
class Refused:
    """A rejected grammar, cached so that it is not compiled again."""

    error: tuple[str, str, str]  # place, cause and remedy
    is_spent = False

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.error))


class Grammar:
    """State of one sequence in its grammar.

    Args:
        matcher: llguidance matcher after the sequence so far.
        num_tokens: vocabulary size of the tokenizer; higher ids are never allowed.
        seconds: CPU time left for this sequence.
    """

    def __init__(self, compiled: Compiled, matcher: Any, num_tokens: int, seconds: float = TEXT_SECONDS) -> None:
        self._compiled, self._matcher, self._num_tokens, self._seconds = compiled, matcher, num_tokens, seconds

    @property
    def is_complete(self) -> bool:
        # the text is complete, and no token can follow
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def forbidden(self, vocab_size: int) -> Tensor:
        """Return -inf for tokens that cannot follow, and -0.0, which changes no bit of a logit, for others: (V,).

        Raises:
            SpecError: the grammar exceeds its limits for this sequence, or no token can follow.
        """
        started = time.thread_time()
        added = OF_BITS.take(np.frombuffer(self._matcher.compute_bitmask(), np.uint8), axis=0).ravel()
        self._seconds += TOKEN_SECONDS + started - time.thread_time()
        self._check()
        forbidden = added[: min(vocab_size, self._num_tokens)]
        if forbidden.max() == -np.inf:
            cause = "allows none of this model's tokens at this point"
            raise SpecError(self._compiled.kind, cause, "allow other characters, or use another model")
        if missing := vocab_size - len(forbidden):
            forbidden = np.pad(forbidden, (0, missing), constant_values=-np.inf)
        return torch.from_numpy(forbidden)

    def consume(self, token: int) -> None:
        started = time.thread_time()
        self._matcher.consume_token(token)
        self._seconds -= time.thread_time() - started

    def fork(self) -> "Grammar":
        return Grammar(self._compiled, self._matcher.deep_copy(), self._num_tokens, self._seconds)

    def _check(self) -> None:
        from archetype.confined.grammars import fault_of

        kind = self._compiled.kind
        if (fault := fault_of(self._matcher)) is not None:
            self._compiled.is_spent = True
            raise SpecError(kind, f"grows too large in this text: {fault}", FEWER_WAYS)
        if self._seconds < 0:
            raise SpecError(kind, SLOW, FEWER_WAYS)


class GrammarCompiler:
    """Compiles grammars for the vocabulary of one tokenizer.

    Raises:
        DataError: llguidance is not installed, or the text of a token depends on its neighbours.
    """

    def __init__(self, tokenizer: Tokenizer, ends: tuple[int, ...]) -> None:
        try:
            import llguidance
        except ImportError:
            raise DataError("llguidance", "is not installed", install_command("grammar")) from None
        if tokenizer.kind == "words":
            cause = "joins words with spaces that no token contains, so that grammars cannot be enforced"
            raise DataError("tokenizer", cause, "use a model with byte, character or subword tokens")
        self._library, self._num_tokens = llguidance, tokenizer.vocab_size
        self._vocabulary = Vocabulary(tokenizer, ends)
        wrapped = llguidance.TokenizerWrapper(self._vocabulary)
        self._tokenizer = llguidance.LLTokenizer(wrapped, eos_token=list(self._vocabulary.ends))
        self._kept: OrderedDict[bytes, Compiled | Refused] = OrderedDict()  # most recently used last
        self._lock = threading.Lock()

    def compile(self, sampling: Sampling) -> Grammar:
        """Return the grammar of the settings in its initial state.

        Raises:
            SpecError: the grammar is invalid.
        """
        (kind, value), *others = [(kind, value) for kind in KINDS if (value := getattr(sampling, kind)) is not None]
        if others:
            raise SpecError(others[0][0], f"cannot be combined with {kind}", "use exactly one of them")
        source = alternatives(value) if kind == "choices" else value
        if len(source) > MAX_SOURCE:
            raise SpecError(kind, f"has {len(source):,} characters, more than {MAX_SOURCE:,}", "use a smaller grammar")
        whitespace = BOUNDED_WHITESPACE if sampling.json_whitespace == "bounded" else None
        key = sha256(f"{kind} {whitespace} {source}".encode(errors="surrogatepass")).digest()
        compiled = self._kept.get(key)
        if compiled is None or compiled.is_spent:  # outside the lock: requests with other grammars need not wait
            if kind == "choices":
                self._vocabulary.check_choices(value)
            compiled = self._compiled(kind, source, whitespace)
        with self._lock:
            self._kept[key] = compiled
            self._kept.move_to_end(key)  # most recently used
            while self.nbytes > MAX_KEPT:
                self._kept.popitem(last=False)
        if isinstance(compiled, Refused):
            raise SpecError(*compiled.error)
        return Grammar(compiled, compiled.matcher.deep_copy(), self._num_tokens)

    @property
    def nbytes(self) -> int:
        return sum(grammar.nbytes for grammar in [*self._kept.values()])  # a copy, as other threads may add to it

    def _compiled(self, kind: str, source: str, whitespace: str | None) -> Compiled | Refused:
        # A subprocess tries the grammar out first, since a crash of the compiler here would end all requests. If it
        # times out, the error is not cached: it may not happen the next time.
        from archetype.confined.grammars import fault_of, limits, text_of

        language = "regex" if kind == "choices" else kind
        try:
            num_tokens = self._num_tokens if "<[" in source else 0  # "<[" refers to tokens by id
            fault, nbytes = _try_out(
                language, source, whitespace, num_tokens, seconds=MAX_SECONDS, max_bytes=MAX_SOURCE
            )
        except ConfinedError as error:
            if error.kind == "Late":
                raise SpecError(kind, str(error), "use a smaller grammar, or try again") from None
            return Refused(
                (kind, str(error), "fix the grammar" if error.kind == "ValueError" else "use a smaller grammar")
            )
        if fault is not None:
            return Refused((kind, fault, "fix the grammar"))
        if nbytes > MAX_BYTES:
            return Refused((kind, f"takes {nbytes >> 20} MiB, more than {MAX_BYTES >> 20}", "use a smaller grammar"))
        text = text_of(language, source, whitespace)
        matcher = self._library.LLMatcher(self._tokenizer, text, log_level=0, limits=limits())
        fault, remedy = fault_of(matcher), "fix the grammar"
        if fault is None and _is_slow(matcher.deep_copy()):
            fault, remedy = SLOW, FEWER_WAYS
        return Compiled(kind, matcher, nbytes) if fault is None else Refused((kind, fault, remedy))


def _is_slow(matcher: Any) -> bool:
    # Whether a sequence would exhaust its CPU time within a few tokens. The first mask takes by far the longest; it is
    # computed here, outside the limit, and fills a cache that all copies share.
    matcher.compute_bitmask()
    started, seconds = time.thread_time(), TEXT_SECONDS
    for _ in range(TRIED):
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        seconds += TOKEN_SECONDS
        if time.thread_time() - started > seconds:
            return True
        if not mask or matcher.is_stopped() or not matcher.consume_token(mask.bit_length() - 1):
            break
    return False
