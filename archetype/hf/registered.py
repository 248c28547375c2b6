"""Attention by a function that is registered with transformers, such as that of vLLM's transformers backend.

Such a function receives queries, keys and values of new tokens, and keeps the keys of earlier ones itself. All other
computations of a model must treat each token alone.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from archetype.errors import SpecError
from archetype.hf.cache import NAME
from archetype.models.decoder.module import Decoder
from archetype.models.output import Output
from archetype.models.spec import ModelSpec
from archetype.nn.context import ForwardContext
from archetype.roles.mixer import AttentionCall
from archetype.roles.parallel import COLUMN, ROW, plans_of

OWN = (None, "eager", "sdpa")  # names of implementations for which Archetype computes attention itself
STYLES: dict[Any, str] = {COLUMN: "colwise", ROW: "rowwise"}
REMEDY = "remove attn_implementation"


def attention_calls(spec: ModelSpec) -> list[AttentionCall]:
    """Return what each layer's attention needs of a registered function.

    Raises:
        SpecError: a registered function cannot compute the model; the message names the first field that prevents it.
    """
    if not (spec.is_causal and spec.embeds_tokens):
        raise SpecError("kind", f"registered attention functions compute decoders, not {spec.kind}", REMEDY)
    (stack,) = spec.stacks
    calls = []
    for index, block in enumerate(stack.layers):
        place = stack.field(index)
        if block.weights_of is not None:
            raise SpecError(place, "shares the weights of another layer, and each layer needs its own cache", REMEDY)
        calls.append(block.mixer.attention_call(stack.d_model, f"{place}.mixer"))
        if not block.feedforward.separates_documents:
            raise SpecError(f"{place}.feedforward", "has a state, which registered attention does not keep", REMEDY)
        # programs that allocate the caches read one size for all layers
        if (calls[-1].sizes, calls[-1].softcap) != (calls[0].sizes, calls[0].softcap):
            raise SpecError(f"{place}.mixer", "has heads or a softcap unlike those of the first layer", REMEDY)
    if len({call.window for call in calls} - {None}) > 1:
        raise SpecError("layers", "have windows of several sizes, and registered functions have one", REMEDY)
    if spec.head.table_width is not None or getattr(spec.head, "transform", None) is not None:
        raise SpecError("head", "has a layer before its logits, which vLLM computes as one product", REMEDY)
    return calls


def names_of(spec: ModelSpec) -> dict[str, Any]:
    """Return the configuration by which other programs allocate caches and compute logits; empty if they cannot."""
    try:
        calls = attention_calls(spec)
    except SpecError:
        return {}
    sizes, windows = calls[0].sizes, [call.window for call in calls]
    return {
        "num_attention_heads": sizes.num_heads,
        "num_key_value_heads": sizes.num_kv_heads,
        "head_dim": sizes.head_dim,
        "layer_types": ["full_attention" if window is None else "sliding_attention" for window in windows],
        "sliding_window": next((window for window in windows if window is not None), None),
        "attn_logit_softcapping": calls[0].softcap,
        "final_logit_softcapping": getattr(spec.head, "softcap", None),
        "logit_scale": getattr(spec.head, "scale", 1.0),
    }


class RegisteredAttention:
    """Forward passes of a decoder whose attention is computed by the function that its configuration names.

    Args:
        config: configuration of the model.
        network: the decoder, whose attention modules get the attributes that such functions read.

    Raises:
        SpecError: a registered function cannot compute the model.
    """

    def __init__(self, config: Any, network: Decoder) -> None:
        self.config, self.network = config, network
        self.calls = attention_calls(config.architecture)
        for index, (block, call) in enumerate(zip(network.blocks, self.calls, strict=True)):
            groups = call.sizes.num_heads // call.sizes.num_kv_heads
            for name, value in {"layer_idx": index, "is_causal": True, "num_key_value_groups": groups}.items():
                setattr(block.mixer, name, value)

    def run(
        self,
        tokens: Tensor | None,
        vectors: Tensor | None,
        mask: Tensor | None,
        positions: Tensor | None,
        others: Mapping[str, Any],
    ) -> Output:
        """Return the vectors that the head reads, (B, T, D).

        Args:
            tokens: token ids (B, T).
            vectors: token vectors (B, T, D) instead; in a later pipeline stage, outputs of the stage before.
            mask: (B, T), 0 at padding.
            positions: position of each token, (B, T) or (1, T).
            others: arguments that are passed to the function.
        """
        if (tokens is None) == (vectors is None):
            raise SpecError("input_ids", "is needed, or inputs_embeds instead", "pass exactly one of them")
        read = cast(Tensor, tokens if vectors is None else vectors)
        batch, length = read.shape[:2]
        if positions is None:
            steps = torch.arange(length, device=read.device).expand(batch, length)
            positions = steps if mask is None else (mask.long().cumsum(1) - 1).clamp(min=0)
        context = self.network.context(read)
        context = replace(context, positions=positions.expand(batch, length), starts_at_zero=False)
        x = self._embedded(tokens, read, context)
        context.attend = self._function(x, mask, positions, others)
        x = self.network.final_norm(self.network.run(x, context), context)
        return Output(None, aux_loss=context.aux_loss, hidden=x)

    def _embedded(self, tokens: Tensor | None, read: Tensor, context: ForwardContext) -> Tensor:
        embedding: Any = self.network.embedding
        if isinstance(embedding, nn.Identity):  # a later stage
            return read
        if tokens is not None:
            return embedding(tokens, context)
        if (place := self.config.architecture.stacks[0].reads_tokens_at) is not None:
            raise SpecError(place, "reads token ids, which inputs_embeds do not have", "pass input_ids")
        return embedding.placed(read, context)

    def _function(self, x: Tensor, mask: Tensor | None, positions: Tensor, others: Mapping[str, Any]) -> Any:
        function: Any = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        makers = {True: create_sliding_window_causal_mask, False: create_causal_mask}
        has_window = {call.window is not None for call in self.calls}
        # None if the implementation builds no masks, as in vLLM
        masks = {kind: makers[kind](self.config, x, mask, None, position_ids=positions) for kind in has_window}

        def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: float) -> Tensor:
            call = self.calls[module.layer_idx]
            options = {"dropout": dropout, "scaling": scale, "sliding_window": call.window, "softcap": call.softcap}
            y, _ = function(module, q, k, v, masks[call.window is not None], **options, **others)
            # (B, T, H, P), or several dimensions joined, to (B, H, T, P)
            return y.reshape(*x.shape[:2], -1, v.shape[3]).transpose(1, 2)

        return attend


def without_cache(cache: Any) -> None:
    """Refuse a cache, since a registered function keeps keys itself."""
    if cache is not None:
        raise SpecError(NAME, "is not read by a registered attention function, which keeps its own", "remove it")


def parallel_plans(spec: ModelSpec, network: nn.Module) -> tuple[dict[str, str] | None, dict[str, Any] | None]:
    """Return how several processes can split a decoder: its matrices, and its layers; None where that is not plain.

    The first names each matrix that is split by columns or by rows; the second the modules that only some processes
    have, with the names of their inputs and outputs (`base_model_tp_plan` and `base_model_pp_plan`).
    """
    if not names_of(spec):
        return None, None
    hidden = ["hidden_states"]
    stages = {
        "embedding": (["input_ids"], ["inputs_embeds"]),
        "blocks": (hidden, hidden),
        "final_norm": (hidden, hidden),
    }
    by_layers = {f"network.{name}": names for name, names in stages.items()} if spec.stacks[0].divides else None
    by_matrices: dict[str, str] = {}
    for block in cast(Decoder, network).blocks:
        for content in ("mixer", "feedforward"):
            styles = _styles(getattr(block, content))
            if styles is None:
                return None, by_layers
            for name, style in styles.items():
                if by_matrices.setdefault(f"network.blocks.*.{content}.{name}", style) != style:
                    return None, by_layers
    return by_matrices, by_layers


def _styles(module: nn.Module | None) -> dict[str, str] | None:
    # of the matrices of a sublayer; None if a parameter is split, or kept, in another way
    if module is None:
        return {}
    split = getattr(plans_of(module).tensor(1), "parameters", {})
    styles = {}
    for name, _ in module.named_parameters():
        path, _, kind = name.rpartition(".")
        style, is_matrix = STYLES.get(split.get(name)), isinstance(module.get_submodule(path), nn.Linear)
        if is_matrix and kind == "weight" and style is not None:
            styles[path] = style
        elif (style is not None and not is_matrix) or name not in split:
            return None
    return styles
