"""Transformers configuration that contains a specification."""

from dataclasses import field
from typing import Any, ClassVar

from transformers import PretrainedConfig

from archetype.convert.source import open_spec
from archetype.errors import SpecError
from archetype.families.own import MODEL_TYPE, read_own_spec
from archetype.hf.registered import names_of
from archetype.models.spec import ModelSpec
from archetype.spec.extensions import extensions_of


class ArchetypeConfig(PretrainedConfig):
    """config.json of a folder whose model is described by a specification.

    Attributes:
        spec: specification as plain data; the constructor accepts anything that `archetype.load_spec` does.
        extensions: required extension files, by name and hash. They are never run automatically.
        use_cache: whether a causal model returns a cache by default.
    """

    model_type = MODEL_TYPE
    keys_to_ignore_at_inference: ClassVar = ["past_key_values", "cache"]

    spec: Any = None
    extensions: list[dict[str, Any]] = field(default_factory=list)
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    decoder_start_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.spec is not None:
            is_data = isinstance(self.spec, dict)
            described = read_own_spec(self.spec, self.extensions) if is_data else open_spec(self.spec)
            self.describe(described)
            if described.head.has_classes and self.id2label is None:
                kwargs.setdefault("num_labels", described.head.num_classes)  # otherwise transformers assumes 2
        super().__post_init__(**kwargs)

    def describe(self, spec: ModelSpec) -> None:
        self.spec = spec.dump()
        self.extensions = [extension.model_dump(mode="json") for extension in extensions_of([spec])]
        self.is_encoder_decoder = spec.reads_source
        # A tied head has no weights here, so transformers has nothing to tie; vLLM builds a head of its own.
        self.tie_word_embeddings = spec.head.shares_table
        self._architecture = spec
        names = names_of(spec)
        for name in (*names, *getattr(self, "_names", ())):
            setattr(self, name, names.get(name))
        self._names = tuple(names)

    @property
    def architecture(self) -> ModelSpec:
        if self.spec is None:
            raise SpecError("spec", "is missing", "pass spec=..., anything that archetype.load_spec accepts")
        return self._architecture

    def to_dict(self) -> dict[str, Any]:
        # the parsed specification repeats `spec`, and is not JSON; the names for other programs follow from it
        left_out = {"_architecture", "_names", *getattr(self, "_names", ())}
        return {name: value for name, value in super().to_dict().items() if name not in left_out}

    @property
    def vocab_size(self) -> int:
        """Size of the input vocabulary; 0 for an image model."""
        return self.architecture.input_vocab_size

    @vocab_size.setter
    def vocab_size(self, size: int) -> None:
        self.describe(self.architecture.replace(vocab_size=size))

    @property
    def hidden_size(self) -> int:
        # of the last stack, whose vectors the head reads
        return self.architecture.stacks[-1].d_model if self.architecture.stacks else 0

    @property
    def num_hidden_layers(self) -> int:
        return self.architecture.num_layers

    @property
    def max_position_embeddings(self) -> int:
        return self.architecture.context_length
