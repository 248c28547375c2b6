"""Backbone of a transformers model, without its head."""

from typing import Any

from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from archetype.errors import SpecError
from archetype.hf.base import HARMLESS, ArchetypePreTrainedModel, refuse
from archetype.hf.cache import NAME, cache_by_either_name
from archetype.hf.configuration import ArchetypeConfig
from archetype.hf.passes import Pass, block_inputs, read_images, read_on, read_whole
from archetype.hf.registered import OWN, RegisteredAttention, parallel_plans, without_cache
from archetype.hf.rows import Rows
from archetype.nn.registry import module_class
from archetype.training.block_execution import blocks_of


class ArchetypeModel(ArchetypePreTrainedModel):
    """Backbone that computes the hidden vectors of tokens or patches.

    Args:
        keeps_head: whether to keep the head for `take_head`.

    Attributes:
        network: Archetype's module without its head.
    """

    network: Any

    def __init__(self, config: ArchetypeConfig, keeps_head: bool = False) -> None:
        super().__init__(config)
        self.network = module_class(config.architecture)(config.architecture)
        # modules that accelerate keeps on one device
        self._no_split_modules = sorted({type(block).__name__ for block in blocks_of(self.network)})
        if not keeps_head:
            self.take_head()
        self._registered: RegisteredAttention | None = None
        self.registered_attention()  # refuses a model that the function cannot compute, before it is loaded
        config.base_model_tp_plan, config.base_model_pp_plan = parallel_plans(config.architecture, self.network)
        self.post_init()

    def registered_attention(self) -> RegisteredAttention | None:
        """Return the passes with the attention function that the configuration names; None for Archetype's attention.

        Raises:
            SpecError: a registered function cannot compute this model.
        """
        if self.config._attn_implementation in OWN:
            return None
        if self._registered is None:
            self._registered = RegisteredAttention(self.config, self.network)
        return self._registered

    def take_head(self) -> nn.Module | None:
        network = self.network
        head: nn.Module | None = network.classifier if network.lm_head is None else network.lm_head
        network.lm_head = network.classifier = network.sentence_head = None
        return head

    def get_input_embeddings(self) -> nn.Module:
        return self._embedding().token

    def set_input_embeddings(self, value: nn.Module) -> None:
        self._embedding().token = value

    def _embedding(self) -> Any:
        names = ("embedding", "local_embedding")
        tables = [module for name in names if hasattr(module := getattr(self.network, name, None), "token")]
        if not tables:
            # transformers expects this exception for models without tokens
            raise NotImplementedError("an image model has no token embedding")
        return tables[0]

    def run(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        pixel_values: Tensor | None = None,
        cache: Any = None,
        inputs_embeds: Tensor | None = None,
        **others: Any,
    ) -> Pass:
        """Run a forward pass with the usual arguments of transformers models.

        Args:
            others: arguments for a registered attention function.

        Raises:
            SpecError: an argument is not supported.
        """
        if (registered := self.registered_attention()) is not None:
            without_cache(cache_by_either_name(cache, past_key_values))
            others = {name: value for name, value in others.items() if name not in HARMLESS}
            with block_inputs(self.network, bool(output_hidden_states)) as inputs:
                output = registered.run(input_ids, inputs_embeds, attention_mask, position_ids, others)
            return Pass(output, Rows(None, None), None, tuple(inputs))
        refuse(others | {"inputs_embeds": inputs_embeds})
        with block_inputs(self.network, bool(output_hidden_states)) as inputs:
            if self.architecture.reads_images:
                result = read_images(self.network, pixel_values)
            elif input_ids is None:
                raise SpecError("input_ids", "is missing", "pass tokens")
            elif self.architecture.is_causal:
                result = read_on(
                    self.network,
                    input_ids,
                    attention_mask,
                    position_ids,
                    token_type_ids,
                    cache_by_either_name(cache, past_key_values),
                    bool(use_cache) and not self.training,
                )
            else:
                result = read_whole(self.network, input_ids, attention_mask, position_ids, token_type_ids)
        result.block_inputs = tuple(inputs)
        return result

    def forward(self, input_ids: Tensor | None = None, **arguments: Any) -> BaseModelOutputWithPast:
        """Return the vectors (B, T, D) that the head reads. The arguments are the same as for `run`."""
        result = self.run(input_ids, **arguments)
        return BaseModelOutputWithPast(
            last_hidden_state=result.hidden, hidden_states=result.hidden_states, **{NAME: result.cache}
        )
