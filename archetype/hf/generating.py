"""How transformers' `generate` begins: with room for the whole text in a state of the model's own kind."""

from typing import Any

from torch import Tensor
from transformers import GenerationConfig
from transformers.generation.utils import GenerationMode

from archetype.hf.cache import NAME, ArchetypeCache
from archetype.models.spec import ModelSpec


class Generating:
    """What models that write text or targets have before transformers' `GenerationMixin`, which looks for itself."""

    architecture: ModelSpec

    def _prepare_cache_for_generation(
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], generation_mode: GenerationMode,
        batch_size: int, max_cache_length: int,
    ) -> None:  # fmt: skip
        """Make room for all tokens at once, unless the caller gives a cache or asks for none."""
        if model_kwargs.get(NAME) is None and generation_config.use_cache is not False:
            model_kwargs[NAME] = ArchetypeCache(max_cache_length + 1)

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, next_sequence_length: int | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Read a text whole once more as it outgrows a length past which its positions rotate otherwise.

        Args:
            input_ids: (B, T), all tokens so far; padding counts, as in Phi-3's class of transformers.
            next_sequence_length: how many of the last are read (absent: all).
            kwargs: of the pass, named as transformers looks for it; the cache is emptied where the text is read whole.
        """
        cache = kwargs.get(NAME)
        if isinstance(cache, ArchetypeCache) and any(
            0 < cache.seen <= length < input_ids.shape[1] for length in self.architecture.rereads_past
        ):
            cache.reset()
            next_sequence_length = None
        prepared: dict[str, Any] = super().prepare_inputs_for_generation(  # type: ignore[misc]
            input_ids, next_sequence_length=next_sequence_length, **kwargs
        )
        return prepared

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False
