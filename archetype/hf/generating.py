"""How transformers' `generate` begins: with room for the whole text in a state of the model's own kind."""

from typing import Any

from transformers import GenerationConfig
from transformers.generation.utils import GenerationMode

from archetype.hf.cache import NAME, ArchetypeCache


class Generating:
    """What models that write text or targets have before transformers' `GenerationMixin`, which looks for itself."""

    def _prepare_cache_for_generation(
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], generation_mode: GenerationMode,
        batch_size: int, max_cache_length: int,
    ) -> None:  # fmt: skip
        """Make room for all tokens at once, unless the caller gives a cache or asks for none."""
        if model_kwargs.get(NAME) is None and generation_config.use_cache is not False:
            model_kwargs[NAME] = ArchetypeCache(max_cache_length + 1)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False
