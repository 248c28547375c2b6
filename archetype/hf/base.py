"""Base class of the transformers models: initialization, vocabulary resizing, and activation checkpointing."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from archetype.errors import SpecError
from archetype.hf.configuration import ArchetypeConfig
from archetype.models.initialization import OwnTensor, initialize_tensor
from archetype.models.spec import ModelSpec
from archetype.training.block_execution import recompute_blocks

HARMLESS = ("return_dict",)  # outputs are always objects


class ArchetypePreTrainedModel(PreTrainedModel):
    config: ArchetypeConfig
    config_class = ArchetypeConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_attention_backend = True  # by `RegisteredAttention`

    @property
    def architecture(self) -> ModelSpec:
        return self.config.architecture

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # transformers calls this for each module; loaded tensors are marked
        tensors = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
        for name, tensor in tensors.items():
            if not getattr(tensor, "_is_hf_initialized", False):
                self._draw(module, name, tensor)

    def _draw(self, module: nn.Module, name: str, tensor: Tensor) -> None:
        # a tensor's generator is seeded by its name, so that the order of calls does not matter
        # set in __dict__: nn.Module would register the modules as submodules
        if "_places" not in self.__dict__:
            self.__dict__["_places"] = {child: name.removeprefix("network.") for name, child in self.named_modules()}
            self.__dict__["_seed"] = int(torch.randint(2**31, ()))
        spec, prefix = self.architecture, self.__dict__["_places"].get(module, "")
        target = OwnTensor(module, name, f"{prefix}.{name}" if prefix else name, tensor)
        initialize_tensor(target, getattr(spec, "initialization"), spec.num_layers, self.__dict__["_seed"])  # noqa: B009

    @torch.no_grad()
    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Module:
        """Resize the vocabulary in the specification and in every matrix with one row per token.

        Args:
            new_num_tokens: new vocabulary size (default: unchanged).
            pad_to_multiple_of: multiple to which the size is rounded up (default: 1).
            mean_resizing: whether to set new rows to the mean of the other rows instead of initializing them.
        """
        size, step = new_num_tokens or self.config.vocab_size, pad_to_multiple_of or 1
        self.config.vocab_size = -(-size // step) * step
        # a model of the new size without memory: its shapes show which tensors have one row per token
        with torch.device("meta"):
            resized = type(self)(self.config)
        for name, shaped in resized.named_parameters():
            path, _, parameter = name.rpartition(".")
            module, old = self.get_submodule(path), self.get_parameter(name)
            if old.shape == shaped.shape:
                continue
            new, num_shared = (
                old.new_empty(shaped.shape),
                min(len(old), len(shaped)),
            )  # rows: tokens in both vocabularies
            setattr(module, parameter, nn.Parameter(new, requires_grad=old.requires_grad))
            if mean_resizing:
                new[:] = old.mean(0)
            else:
                self._draw(module, parameter, new)
            new[:num_shared] = old[:num_shared]
            if isinstance(module, nn.Embedding):
                module.num_embeddings = len(shaped)
        return self.get_input_embeddings()

    def activation_checkpointing_enable(
        self, activation_checkpointing_kwargs: Any = None, every_n_layers: int = 1, offload: bool = False
    ) -> None:
        """Recompute activations of all blocks in the backward pass. `every_n_layers` and `offload` are refused."""
        if every_n_layers != 1 or offload:
            name = "offload" if offload else "every_n_layers"
            raise SpecError(name, "is not supported by models of type archetype", "recompute all blocks")
        recompute_blocks(self, "blocks")

    def activation_checkpointing_disable(self) -> None:
        recompute_blocks(self, "none")

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Any = None, **others: Any) -> None:
        self.activation_checkpointing_enable(gradient_checkpointing_kwargs, **others)  # the older name

    gradient_checkpointing_disable = activation_checkpointing_disable

    @property
    def is_gradient_checkpointing(self) -> bool:
        return any(getattr(module, "num_recomputed", 0) for module in self.modules())


def refuse(arguments: dict[str, Any]) -> None:
    """Refuse the first argument that is set and that only other transformers models support."""
    for name, value in arguments.items():
        if name not in HARMLESS and value is not None and value is not False:
            raise SpecError(name, "is not an argument of models of type archetype", "remove it")


def check_kind(model: ArchetypePreTrainedModel, fits: bool, does: str) -> None:
    if not fits:
        spec = model.architecture
        cause = f"a model of kind {spec.kind} with the head {spec.head.kind} does not {does}"
        raise SpecError(type(model).__name__, cause, "use a class that fits, or AutoModel for its vectors")
