"""Loaded models as handlers use them."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from archetype import __version__
from archetype.api.language_model import LanguageModel
from archetype.apps.serve.errors import ApiError, invalid_value
from archetype.apps.serve.memory import Memory
from archetype.apps.serve.models import ModelOptions, Source
from archetype.apps.serve.worker import Worker
from archetype.estimate.state import state_parts
from archetype.generate import Engine, Sampling
from archetype.generate.state_dtype import own_state_dtype
from archetype.spec.base import fingerprint
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.token_bytes import TokenBytes
from archetype.weights.fingerprint import weights_fingerprint


class ServedModel:
    """Loaded model with the worker that runs it."""

    def __init__(self, source: Source, lm: LanguageModel, options: ModelOptions, memory: Memory | None = None) -> None:
        self.memory = memory or Memory()
        self._state_bytes: dict[tuple[int, int], int] = {}  # (target length, source length) -> bytes of the state
        # --generation-config none: the defaults of `Sampling` instead of the model's
        if not options.own_sampling:
            lm = replace(lm, sampling=Sampling())
        if options.chat_template is not None:
            lm = replace(lm).use_template(options.chat_template)
        self.name, self.source, self.lm = source.name, source, lm
        self.created = int(time.time())
        self.fingerprint = _fingerprint(lm)
        self.nbytes = sum(tensor.nbytes for tensor in (*lm.model.parameters(), *lm.model.buffers()))
        # other models, such as encoders, answer within a single pass
        engine = Engine(lm, options.slots, options.prefix_bytes) if self.generates else None
        self.worker = Worker(lm, engine, options.max_queue)

    @property
    def generates(self) -> bool:
        """Return whether the model generates text (decoder or encoder-decoder)."""
        return self.lm.spec.continues_text or self.lm.spec.writes_target

    @property
    def translates(self) -> bool:
        """Return whether the model is an encoder-decoder."""
        return self.lm.spec.reads_source

    @property
    def context_length(self) -> int | None:
        """Return the largest number of tokens in a sequence; None for an image model."""
        return None if self.lm.spec.reads_images else self.lm.model.spec.context_length

    @property
    def vocab_size(self) -> int:
        """Return the vocabulary size; 0 for an image model."""
        return self.lm.spec.input_vocab_size

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer.

        Raises:
            ApiError: the model has no tokenizer.
        """
        if self.lm.tokenizer is None:
            raise ApiError("invalid_value", f"the model {self.name} has no tokenizer; send token ids", "prompt")
        return self.lm.tokenizer

    @cached_property
    def token_bytes(self) -> Callable[[int], bytes]:
        """Return a function that maps a token id to its bytes."""
        return (lambda token: b"") if self.lm.tokenizer is None else TokenBytes(self.lm.tokenizer)

    @cached_property
    def special(self) -> dict[int, str]:
        """Return the names of the special tokens, which have no text, keyed by id."""
        return {} if self.lm.tokenizer is None else {id: name for name, id in self.lm.tokenizer.special_tokens.items()}

    def bytes_of(self, token: int) -> bytes:
        """Return a token's bytes for display: the name of a special token, "token_id:ID" for an unknown id."""
        if (name := self.special.get(token)) is not None:
            return name.encode()
        if self.lm.tokenizer is None or token >= self.lm.tokenizer.vocab_size:
            return f"token_id:{token}".encode()
        # a token without bytes, which no text contains, is shown as the vocabulary names it
        return self.token_bytes(token) or self.lm.tokenizer.token(token).encode()

    def check_state(self, length: int, source_length: int, param: str) -> None:
        """Check that there is enough memory for the state of one more sequence.

        Args:
            length: tokens of the text, or of the target of an encoder-decoder.
            source_length: tokens of the source.
            param: field of the body that determines the length.

        Raises:
            ApiError: there is not enough memory.
        """
        engine, context = self.worker.engine, self.context_length or 1
        assert engine is not None
        length = min(1 << max(length - 1, 0).bit_length(), context)  # states grow by doubling
        source = min(1 << max(source_length - 1, 0).bit_length(), context) if self.translates else 0
        if (length, source) not in self._state_bytes:
            itemsizes = self.lm.model.dtype.itemsize, engine.state_dtype.itemsize
            parts = state_parts(self.lm.spec, length, source or None)
            self._state_bytes[length, source] = sum(part.nbytes(*itemsizes) for part in parts)
        alone = self._state_bytes[length, source]
        # the batch of the engine grows by doubling, too
        slots = min(engine.slots, 1 << max(self.worker.num_unfinished - 1, 0).bit_length())
        if slots * alone > engine.state_nbytes:
            self.memory.check(slots * alone, f"the state of a text of {length:,} tokens", param, alone)

    def check(self, task: str) -> None:
        """Check that the model supports a task.

        Args:
            task: "completions", "chat completions", "embeddings" or "classes".

        Raises:
            ApiError: the model does not support the task. The message names the tasks that the model supports.
        """
        head = getattr(self.lm.spec, "head", None)
        able = {
            "completions": self.generates,
            "chat completions": self.generates and not self.translates,
            "embeddings": self.lm.spec.embeds_tokens,
            "classes": head is not None and head.classifies,
        }
        if not able[task]:
            verbs = ", ".join(name for name, possible in able.items() if possible) or "no task of this API"
            cause = f"{self.name} (kind {self.lm.spec.kind}) does not support {task}"
            raise invalid_value("model", f"{cause}; it supports {verbs}")


def _fingerprint(lm: LanguageModel) -> str:
    # a sample of every tensor: reading all weights would delay the start
    parts = " ".join([__version__, fingerprint(lm.spec), weights_fingerprint(lm.model), *own_state_dtype(lm.model)])
    return f"fp_{hashlib.sha256(parts.encode()).hexdigest()[:16]}"
