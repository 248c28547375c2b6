"""Checked reading of a published config.json. An unread key is refused with an error that names it."""

from collections.abc import Collection
from typing import Any

from archetype.errors import CheckpointError
from archetype.parts.activation.spec import GELU, XIELU, GELUTanh, ReLU, ReLU2, Sigmoid, SiLU, Swish, Tanh
from archetype.roles.activation import Activation
from archetype.spec.base import MAX_SIZE

# Keys without effect on the architecture: bookkeeping of the library that wrote the file, and output options.
BOOKKEEPING = frozenset({
    "model_type", "architectures", "transformers_version", "torch_dtype", "dtype", "use_cache", "_name_or_path",
    "_commit_hash", "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "cls_token_id",
    "decoder_start_token_id", "id2label", "label2id", "num_labels", "_num_labels", "problem_type",
    "task_specific_params", "finetuning_task", "tokenizer_class", "prefix", "output_attentions",
    "output_hidden_states", "return_dict", "use_return_dict", "torchscript", "auto_map", "gradient_checkpointing",
    "attn_implementation", "_attn_implementation", "_attn_implementation_autoset", "quantization_config_path",
    "is_decoder", "is_encoder_decoder", "chunk_size_feed_forward", "forced_bos_token_id", "forced_eos_token_id",
    "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
    "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores",
    "return_dict_in_generate", "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens",
    "begin_suppress_tokens", "tf_legacy_loss", "use_bfloat16",
})

ACTIVATIONS: dict[str, Activation] = {
    "relu": ReLU(),
    "gelu": GELU(),
    "gelu_new": GELUTanh(),
    "gelu_pytorch_tanh": GELUTanh(),
    "silu": SiLU(),
    "swish": SiLU(),
    "tanh": Tanh(),
    "sigmoid": Sigmoid(),
    "relu2": ReLU2(),
    "quick_gelu": Swish(beta=1.702),
    "xielu": XIELU(),
}


def activation_name(activation: Activation) -> str:
    for name, known in ACTIVATIONS.items():
        if known == activation:
            return name
    raise CheckpointError("activation", f"the format has no name for {activation.kind!r}", "use another activation")


class Config:
    """config.json that records which keys are read. Every error names the key."""

    def __init__(self, values: dict[str, Any], place: str = "config.json") -> None:
        self.values = values
        self.place = place
        self.used: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.used.add(key)
        return self.values.get(key, default)

    def size(self, key: str, default: int | None = None, most: int = MAX_SIZE) -> int:
        value = self._required(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.error(key, f"{value!r} is not a positive whole number", "fix the file")
        if value > most:
            raise self.error(key, f"{value} is too large", f"use at most {most}")
        return value

    def count(self, key: str, default: int) -> int:
        return 0 if self.get(key, default) == 0 else self.size(key, default)

    def optional_size(self, key: str, default: int | None = None) -> int | None:
        """Return a positive integer or None, or `default` if the key is missing."""
        return None if self.get(key, default) is None else self.size(key, default)

    def number(self, key: str, default: float | None = None) -> float:
        value = self._required(key, default)
        # Python reads NaN and Infinity in JSON
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e30 or value != value:
            raise self.error(key, f"{value!r} is not a finite number", "fix the file")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        if (value := self.number(key, default)) <= 0:
            raise self.error(key, f"{value} is not positive", "fix the file")
        return value

    def optional_positive(self, key: str, default: float | None = None) -> float | None:
        return None if self.get(key, default) is None else self.positive(key, default)

    def rate(self, key: str, default: float) -> float:
        if not 0 <= (value := self.number(key, default)) < 1:
            raise self.error(key, f"{value} is not in the range 0 to 1", "fix the file")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._required(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"{value!r} is neither true nor false", "fix the file")
        return value

    def activation(self, key: str, default: str) -> Activation:
        name = self._required(key, default)
        if not isinstance(name, str) or name not in ACTIVATIONS:
            raise self.error(key, f"unknown activation {name!r}", f"use one of {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[name]

    def expect(self, key: str, value: Any, meaning: str) -> None:
        if (actual := self.get(key, value)) != value:
            raise self.error(key, f"{actual!r} is not supported ({meaning})", f"only {value!r} is")

    def section(self, key: str) -> "Config | None":
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, f"{value!r} is not a mapping", "fix the file")
        return Config(value, f"{self.place}: {key}")

    def finish(self, ignored: frozenset[str] = BOOKKEEPING, read: Collection[str] | None = None) -> tuple[str, ...]:
        """Refuse keys that were not read. Return the keys of the file that its class does not read either.

        Args:
            ignored: keys without effect.
            read: keys that the class reads (default: all keys).
        """
        left = tuple(key for key in self.values if key not in self.used and key not in ignored)
        for key in left:
            if read is None or key in read:
                raise self.error(key, "is not supported for this family", "remove it if it does not change the output")
        return left

    def error(self, key: str, cause: str, remedy: str = "") -> CheckpointError:
        return CheckpointError(f"{self.place}: {key}", cause, remedy)

    def _required(self, key: str, default: Any) -> Any:
        value = self.get(key)
        # null counts as missing, as in transformers
        value = default if value is None else value
        if value is None:
            raise self.error(key, "is missing", "add it")
        return value
