"""A folder as transformers writes it, read by both libraries: what every parity test compares."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from archetype.api.language_model import LanguageModel
from archetype.convert.apply import export_tensors, shapes_of
from archetype.families.rules import for_model

EXACT = 1e-5  # of the logits' largest magnitude, in float32
WRONG = 1e-3  # what every mistake exceeds
VOCABULARY, CONTEXT = 61, 32


@dataclass(frozen=True)
class Published:
    """The folder, and the models that transformers and Archetype read from it."""

    folder: Path
    hf: nn.Module
    lm: LanguageModel


Publish = Callable[[str], Published]
Change = Callable[[Any], None]


def text(length: int, vocab_size: int = VOCABULARY, first: int = 0) -> Tensor:
    """Two texts of tokens from `first` on."""
    return torch.randint(first, vocab_size, (2, length), generator=torch.Generator().manual_seed(length))


def same_gradients(one: Published, hf: Callable[[Any], Tensor], ours: Callable[[Any], Tensor], folder: Path) -> None:
    """Each library writes its gradients as it writes weights, so that the files can be compared."""
    hf_model = copy.deepcopy(one.hf).requires_grad_(True)
    our_model = copy.deepcopy(one.lm.model).requires_grad_(True)
    hf(hf_model).square().mean().backward()
    ours(our_model).square().mean().backward()
    with torch.no_grad():
        for parameter in (*hf_model.parameters(), *our_model.parameters()):
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    hf_model.save_pretrained(folder)  # type: ignore[operator]
    expected = load_file(folder / "model.safetensors")
    assert one.lm.family is not None
    rules = for_model(one.lm.family.format.rules_for(our_model.spec), our_model.spec.num_layers, shapes_of(our_model))
    buffers = dict(hf_model.named_buffers())
    # a bias of keys moves all scores of a query alike, so that its gradient is nothing but the others' rounding
    rounding = 1e-3 * max(gradient.abs().max().item() for gradient in expected.values())
    for key, gradient in export_tensors(our_model, rules):
        if key not in expected or key in buffers:
            continue
        scale = max(expected[key].abs().max().item(), rounding)
        assert (gradient - expected[key]).abs().max() < 1e-4 * scale, key


def same_tensors(before: Path, after: Path, but: tuple[str, ...] = ()) -> None:
    """The files hold the same tensors to the bit, `but` for those which the second leaves out."""
    one, other = (load_file(folder / "model.safetensors") for folder in (before, after))
    assert other.keys() == one.keys() - set(but)
    for key, tensor in other.items():
        assert torch.equal(tensor, one[key]), key
        assert tensor.dtype == one[key].dtype, key


def swap(one: str, two: str) -> Change:
    """Exchange two parameters."""

    @torch.no_grad()
    def swapped(model: nn.Module) -> None:
        first = model.get_parameter(one).clone()
        model.get_parameter(one).copy_(model.get_parameter(two))
        model.get_parameter(two).copy_(first)

    return swapped


def lose(name: str) -> Change:
    """Zero a parameter."""

    @torch.no_grad()
    def lost(model: nn.Module) -> None:
        model.state_dict()[name].zero_()

    return lost


def untie(model: Any) -> None:
    """Give a head another table than the embedding's."""
    model.lm_head.weight = nn.Parameter(model.embedding.token.weight.roll(1, 0))
