"""Hooks for transformers' `generate`: an Archetype cache with room for the complete sequence."""

from typing import Any

from torch import Tensor
from transformers import GenerationConfig
from transformers.generation.utils import GenerationMode

from archetype.hf.cache import NAME, ArchetypeCache
from archetype.hf.model import ArchetypeModel
from archetype.models.spec import ModelSpec


class Generating:
    """Mixin for models that generate; must precede transformers' `GenerationMixin`."""

    architecture: ModelSpec
    model: ArchetypeModel

    def _prepare_cache_for_generation(
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        generation_mode: GenerationMode,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        if self.model.registered_attention() is not None:  # it has no cache here: each step reads the whole sequence
            generation_config.use_cache = False
        # room for all tokens at once, unless the caller passes or disables a cache
        if model_kwargs.get(NAME) is None and generation_config.use_cache is not False:
            model_kwargs[NAME] = ArchetypeCache(max_cache_length + 1)  # with room for the last token too

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, next_sequence_length: int | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Prepare a forward pass. The complete sequence is read again if its length changes the rotary positions.

        Args:
            input_ids: all token ids so far (B, T). Padding counts, as in transformers' Phi-3.
            next_sequence_length: number of last tokens to read (default: all).
        """
        cache = kwargs.get(NAME)
        if isinstance(cache, ArchetypeCache) and any(
            0 < cache.seen <= length < input_ids.shape[1] for length in self.architecture.rereads_past
        ):
            # cached keys were rotated with the frequencies of the shorter length
            cache.reset()
            next_sequence_length = None
        return super().prepare_inputs_for_generation(  # type: ignore[misc]
            input_ids, next_sequence_length=next_sequence_length, **kwargs
        )

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        # otherwise `generate` creates a DynamicCache
        return False
