"""Comparison of a model in Archetype with transformers, module by module, or of a GGUF file with llama.cpp.

Modules are paired through the weight rules: modules with the same tensors are compared, in the order in which they
run.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import SequenceMatcher
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from archetype.convert.apply import export_tensors, published_shapes
from archetype.convert.gguf.header import is_gguf
from archetype.convert.hf_folder import read_model
from archetype.convert.reference import load_reference
from archetype.errors import ArchetypeError, DataError
from archetype.families import Family
from archetype.families.rules import Rule, for_model
from archetype.io import hub
from archetype.io.tensors import dtype_of
from archetype.io.yaml import read_mapping
from archetype.models.build import Model
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.models.spec import ModelSpec
from archetype.models.vision.module import VisionEncoder
from archetype.tokenizers import open_tokenizer

TOLERANCES = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2, "float64": 1e-12}
LENGTH = 32  # tokens of the random input
OUTPUTS = ("logits", "prediction_logits", "last_hidden_state")


@dataclass(frozen=True)
class ModuleDifference:
    """Largest difference between the outputs of two paired modules, relative to the largest magnitude."""

    module: str
    reference: str
    difference: float


@dataclass(frozen=True)
class Parity:
    """Result of comparing a model with another library.

    Attributes:
        dtype: dtype of the weights and of the computation.
        tolerance: largest relative difference that counts as agreement.
        modules: differences of the modules, in the order in which they run.
        left_out: modules without a comparable counterpart.
        difference: largest difference of the outputs, relative to their largest magnitude.
        kl: mean KL divergence of the output distributions in nats; None without logits.
        top1: fraction of positions with the same most likely token or class; None without logits.
    """

    dtype: str
    tolerance: float
    modules: list[ModuleDifference]
    left_out: list[str]
    difference: float
    kl: float | None
    top1: float | None

    @property
    def first(self) -> ModuleDifference | None:
        """First module with a difference above the tolerance."""
        return next((module for module in self.modules if module.difference > self.tolerance), None)

    @property
    def agrees(self) -> bool:
        """Whether the outputs and all modules agree within the tolerance."""
        return self.difference <= self.tolerance and self.first is None


@torch.inference_mode()
def compare(
    folder: Path,
    dtype: str = "float32",
    text: str | None = None,
    tolerance: float | None = None,
    overrides: Sequence[str] = (),
) -> Parity:
    """Run both models on the same input and compare their outputs.

    Args:
        folder: a Hugging Face folder, a GGUF file, or a model on huggingface.co (owner/name or owner/name@revision).
        text: input text (default: random tokens or a random image).
        tolerance: largest relative difference that counts as agreement (default: by dtype).
        overrides: path=value changes to the specification that Archetype reads.

    Raises:
        ArchetypeError: the folder cannot be read, or transformers is missing or cannot read it.
    """
    folder = hub.local(folder)
    if is_gguf(folder):
        return _compare_with_llama_cpp(folder, dtype, text, tolerance, overrides)
    if not (folder / "config.json").is_file():
        raise DataError(str(folder), "is not a Hugging Face folder", "export it first")
    family, model = read_model(folder, dtype_of(dtype), overrides=overrides)
    reference = load_reference(folder, dtype_of(dtype))
    pairs, left_out = _pair_modules(family, model, reference)
    inputs = make_inputs(model, folder, text)
    # the same input through both, with the outputs of the paired modules recorded
    with _record_outputs(model, {name for group, _ in pairs for name in group.params}) as outputs:
        output = run(model, inputs)
    with _record_outputs(reference, {name for _, name in pairs}) as reference_outputs:
        reference_output = run_reference(family, reference, inputs)
    differences = {
        # one fused module of transformers may correspond to several here (q, k and v)
        (group.params, name): distance(_join(group, outputs), reference_outputs[name])
        for group, name in pairs
        if name in reference_outputs and all(param in outputs for param in group.params)
    }
    order = {name: index for index, name in enumerate(outputs)}
    modules = [
        ModuleDifference(", ".join(params), name, value)
        for (params, name), value in sorted(differences.items(), key=lambda item: order[item[0][0][0]])
        if value is not None
    ]
    # modules that did not run, or whose outputs have other shapes
    left_out += [", ".join(group.params) for group, name in pairs if differences.get((group.params, name)) is None]
    difference = distance(output, reference_output)
    if difference is None:
        cause = f"the output has shape {list(output.shape)} here and {list(reference_output.shape)} in transformers"
        raise ArchetypeError(str(folder), cause, "do both support this architecture?")
    likelihoods = _compare_likelihoods(model.spec, output, reference_output)
    return Parity(dtype, tolerance or TOLERANCES[dtype], modules, sorted(set(left_out)), difference, *likelihoods)


def _compare_with_llama_cpp(
    path: Path, dtype: str, text: str | None, tolerance: float | None, overrides: Sequence[str]
) -> Parity:
    # llama.cpp exposes no modules, so only the outputs are compared
    from archetype.convert.gguf import parity

    model, output, reference = parity.outputs(path, dtype, text, overrides)
    difference = distance(output, reference)
    assert difference is not None  # both have the file's sizes
    allowed = max(TOLERANCES[dtype], parity.tolerance(path)) if tolerance is None else tolerance
    return Parity(dtype, allowed, [], [], difference, *_compare_likelihoods(model.spec, output, reference))


def _pair_modules(family: Family, model: Model, reference: nn.Module) -> tuple[list[tuple[Rule, str]], list[str]]:
    # (rule between module names, transformers module with the same weight), and our modules without a counterpart
    known, pairs, without = _ModulesByWeight(reference), [], _cut_elsewhere(model.spec)
    rules = for_model(family.format.rules_for(model.spec), model.spec.num_layers, published_shapes(model))
    for rule, (_, tensor) in zip(rules, export_tensors(model, rules), strict=True):
        path, _, kind = rule.hf.rpartition(".")
        if kind != "weight" or rule.share is not None or rule.params[0].removesuffix(".weight") in without:
            continue
        group = Rule(path, tuple(name.rpartition(".")[0] for name in rule.params), heads=rule.heads)
        if (name := known.find(path, tensor)) is not None:
            pairs.append((group, name))
        else:
            without.append(", ".join(group.params))
    return pairs, without


def _cut_elsewhere(model: ModelSpec) -> list[str]:
    # modules whose output is scaled or capped inside the module here, but outside it in transformers
    scaled = getattr(getattr(model, "embedding", None), "scale", 1.0) != 1.0
    has_softcap = getattr(getattr(model, "head", None), "softcap", None) is not None
    return ["embedding.token"] * scaled + ["lm_head"] * has_softcap


class _ModulesByWeight:
    """Modules of a model, found by name or, if the file has other names, by a hash of their weight."""

    def __init__(self, model: nn.Module) -> None:
        self.names = {name for name, _ in model.named_modules()}
        self.holders: dict[bytes, list[str]] = {}
        for name, weight in model.named_parameters():
            self.holders.setdefault(_digest(weight), []).append(name.rpartition(".")[0])

    def find(self, path: str, weight: Tensor) -> str | None:
        """Return the module with this name, or the module with this weight in the same layer and the most similar name.

        Several modules may have equal weights, such as the norms of an untrained model.
        """
        if path in self.names:
            return path
        holders = self.holders.get(_digest(weight), [])
        # equal weights in several layers: the layer's index must agree
        if len(holders) > 1:
            holders = [name for name in holders if re.findall(r"\d+", name) == re.findall(r"\d+", path)]
        return max(holders, key=lambda name: SequenceMatcher(None, path, name).ratio(), default=None)


def _digest(tensor: Tensor) -> bytes:
    tensor = tensor.detach().contiguous()
    return sha256(repr(tuple(tensor.shape)).encode() + tensor.reshape(-1).view(torch.uint8).numpy().tobytes()).digest()


@contextmanager
def _record_outputs(model: nn.Module, names: set[str]) -> Iterator[dict[str, Tensor]]:
    # the output of each module at its first call, in the order of calls
    outputs: dict[str, Tensor] = {}

    def recorder(name: str) -> Callable[[Any, Any, Any], None]:
        def record(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                outputs.setdefault(name, output.clone())  # later operations may work in place

        return record

    handles = [model.get_submodule(name).register_forward_hook(recorder(name)) for name in names]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def _join(group: Rule, outputs: dict[str, Tensor]) -> Tensor:
    # (B, T, H, features of a head) each, concatenated per head as in transformers' fused module
    parts = [outputs[name].unflatten(-1, (group.heads, -1)) for name in group.params]
    return torch.cat(parts, dim=-1).flatten(-2)


def distance(tensor: Tensor, reference: Tensor) -> float | None:
    """Return the largest difference relative to the largest magnitude of the reference; None if the shapes differ."""
    if reference.dim() == 4 and tensor.dim() == 3:
        reference = reference.flatten(2).transpose(1, 2)  # (B, D, H, W) to (B, H * W, D)
    tensor, reference = tensor.double().squeeze(), reference.double().squeeze()
    if tensor.shape != reference.shape:
        return None
    return ((tensor - reference).abs().max() / reference.abs().max().clamp(min=1e-30)).item()


def make_inputs(model: Model, folder: Path, text: str | None) -> dict[str, Tensor]:
    """Return the inputs for both models, keyed by transformers' argument names."""
    generator = torch.Generator().manual_seed(0)
    spec = model.spec
    if isinstance(model, VisionEncoder):
        size = (1, model.spec.num_channels, model.spec.image_size, model.spec.image_size)
        return {"pixel_values": torch.randn(size, generator=generator).to(next(model.parameters()).dtype)}
    if text is not None:
        tokens = torch.tensor([_encode(folder, text)])
    else:
        vocab_size = min(getattr(spec, "vocab_size", 2), getattr(spec, "source_vocab_size", None) or 2**31)
        length = min(LENGTH, spec.context_length)
        # low ids are often padding, which transformers treats differently from other tokens
        tokens = torch.randint(min(5, vocab_size - 1), vocab_size, (1, length), generator=generator)
    if isinstance(model, EncoderDecoder):
        end = read_mapping(folder / "config.json").get("eos_token_id")
        if model.spec.head.classifies and isinstance(end, int):  # transformers' head reads the position of this token
            tokens[:, -1] = end
        # any other tokens than the source's would do; a shift keeps them within both vocabularies
        return {"input_ids": tokens, "decoder_input_ids": tokens.roll(1, 1)}
    return {"input_ids": tokens}


def _encode(folder: Path, text: str) -> list[int]:
    try:
        tokenizer = open_tokenizer(folder)
    except DataError as error:
        if error.place == str(folder):
            raise DataError("tokenizer", "the model's folder has no tokenizer", "omit --text") from None
        raise
    return tokenizer.add_special_tokens(tokenizer.encode(text))


def run(model: Model, inputs: dict[str, Tensor]) -> Tensor:
    if isinstance(model, EncoderDecoder):
        output = model(inputs["decoder_input_ids"], source=inputs["input_ids"])
    else:
        (tensor,) = inputs.values()
        output = model(tensor)
    return output.hidden if output.logits is None else output.logits


def run_reference(family: Family, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    if family.format is not None and family.format.marks_global_tokens:
        mask = torch.zeros_like(inputs["input_ids"])
        # Longformer's classes get their global tokens as an argument; here it is the first token
        mask[:, 0] = 1
        inputs = inputs | {"global_attention_mask": mask}
    outputs = model(**inputs)
    return next(outputs[name] for name in OUTPUTS if name in outputs)


def _compare_likelihoods(spec: ModelSpec, output: Tensor, reference: Tensor) -> tuple[float | None, float | None]:
    # KL divergence and top-1 agreement, if the outputs are logits
    if getattr(spec, "head", None) is not None and spec.head.kind == "none":
        return None, None
    expected, log_probabilities = reference.double().log_softmax(-1), output.double().log_softmax(-1)
    divergence = (expected.exp() * (expected - log_probabilities)).sum(-1).mean()
    same = (reference.argmax(-1) == output.argmax(-1)).double().mean()
    return divergence.item(), same.item()
