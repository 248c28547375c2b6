"""Whether a folder gives the same in Archetype and in transformers, module by module; for who ports or converts models.

What is compared follows from the weight rules: the modules of both that hold the same tensors, in the order in which
they run.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from archetype.convert.apply import exported, shapes
from archetype.errors import ArchetypeError, DataError
from archetype.families.rules import Rule, for_model
from archetype.io import hub
from archetype.io.tensors import dtype_of
from archetype.language_model import LanguageModel
from archetype.loading import load
from archetype.models import EncoderDecoder, VisionEncoder
from archetype.spec import ModelSpec

TOLERANCES = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2, "float64": 1e-12}
LENGTH = 32  # tokens of the text that is made up where none is given
ANSWERS = ("logits", "prediction_logits", "last_hidden_state")


@dataclass(frozen=True)
class Module:
    """One module of ours and of theirs, and the largest difference of what they give, of the largest magnitude."""

    ours: str
    theirs: str
    difference: float


@dataclass(frozen=True)
class Parity:
    """What a comparison found.

    Attributes:
        dtype: that both computed in.
        tolerance: beyond which a module counts as diverging.
        modules: in the order in which they run.
        left_out: modules of ours that have no counterpart of theirs that gives the same.
        difference: of the answers, the largest, of the largest magnitude.
        kl: of their distribution and ours, in nats, on average; None for models without one.
        top1: the share of positions at which both find the same likeliest.
    """

    dtype: str
    tolerance: float
    modules: list[Module]
    left_out: list[str]
    difference: float
    kl: float | None
    top1: float | None

    @property
    def first(self) -> Module | None:
        """The first module that diverges."""
        return next((module for module in self.modules if module.difference > self.tolerance), None)

    @property
    def agrees(self) -> bool:
        """Whether the answers agree."""
        return self.difference <= self.tolerance


@torch.inference_mode()
def compare(
    folder: Path,
    dtype: str = "float32",
    text: str | None = None,
    tolerance: float | None = None,
    changes: Sequence[str] = (),
) -> Parity:
    """Run both on the same input.

    Args:
        folder: a Hugging Face folder, or the name of a model of huggingface.co.
        dtype: of the weights and what is computed.
        text: what both read (absent: tokens made up, or a picture).
        tolerance: beyond which a module diverges (absent: what the type allows).
        changes: path=value, of what ours reads of the folder.

    Raises:
        ArchetypeError: the folder cannot be read, transformers is missing or cannot read it.
    """
    folder = hub.local(folder)
    if not (folder / "config.json").is_file():
        raise DataError(str(folder), "is no Hugging Face folder", "export it first")
    ours, theirs = load(folder, dtype=dtype_of(dtype), overrides=changes), _reference(folder, dtype_of(dtype))
    pairs, left_out = _pairs(ours, theirs)
    inputs = _inputs(ours, text)
    with _outputs(ours.model, {name for group, _ in pairs for name in group.ours}) as ours_gave:
        answer = _ours(ours, inputs)
    with _outputs(theirs, {name for _, name in pairs}) as theirs_gave:
        expected = _theirs(ours, theirs, inputs)
    found = {
        (group.ours, name): _distance(_joined(group, ours_gave), theirs_gave[name])
        for group, name in pairs
        if name in theirs_gave and all(one in ours_gave for one in group.ours)
    }
    order = {name: place for place, name in enumerate(ours_gave)}
    modules = [Module(", ".join(group), name, value) for (group, name), value in found.items() if value is not None]
    left_out += [", ".join(group.ours) for group, name in pairs if found.get((group.ours, name)) is None]
    modules.sort(key=lambda module: order[module.ours.split(", ")[0]])
    distance = _distance(answer, expected)
    if distance is None:
        cause = f"ours has shape {list(answer.shape)} and theirs {list(expected.shape)}"
        raise ArchetypeError(str(folder), cause, "is this an architecture that both know?")
    likely = _likelihoods(ours, answer, expected)
    return Parity(dtype, tolerance or TOLERANCES[dtype], modules, sorted(set(left_out)), distance, *likely)


def _reference(folder: Path, dtype: torch.dtype | None) -> nn.Module:
    """The model as transformers reads it, by the class that config.json names; no code of the folder is run."""
    try:
        import transformers
    except ImportError:
        raise DataError("transformers", "is not installed", "pip install transformers") from None
    names = json.loads((folder / "config.json").read_bytes()).get("architectures") or []
    logging: Any = transformers.logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    made = getattr(transformers, str(names[0]), None) if names else None
    if made is None:
        cause = f"names the class {names[0]!r}, which transformers lacks" if names else "names no class"
        raise DataError(f"{folder / 'config.json'}: architectures", cause, "name the class that reads this folder")
    try:
        found: nn.Module = made.from_pretrained(folder, dtype=dtype, local_files_only=True)
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError) as error:
        raise DataError(str(folder), f"transformers cannot read it: {' '.join(str(error).split())}") from None
    return found.eval()


def _pairs(lm: LanguageModel, theirs: nn.Module) -> tuple[list[tuple[Rule, str]], list[str]]:
    """Our modules (as a rule of module names) with their one that holds the same weight, and those without."""
    assert lm.family is not None
    known, found, without = _Modules(theirs), [], _cut_elsewhere(lm.spec)
    rules = for_model(lm.family.format.rules_for(lm.spec), lm.spec.num_layers, shapes(lm.model))
    for rule, (_, tensor) in zip(rules, exported(lm.model, rules), strict=True):
        path, _, kind = rule.theirs.rpartition(".")
        if kind != "weight" or rule.expert is not None or rule.ours[0].removesuffix(".weight") in without:
            continue
        group = Rule(path, tuple(name.rpartition(".")[0] for name in rule.ours), heads=rule.heads)
        if (name := known.holding(path, tensor)) is not None:
            found.append((group, name))
        else:
            without.append(", ".join(group.ours))
    return found, without


def _cut_elsewhere(model: ModelSpec) -> list[str]:
    """Modules that end before or after a scale or a soft cap where theirs do not: what they give is not the same."""
    scaled = getattr(getattr(model, "embedding", None), "scale", 1.0) != 1.0
    bent = getattr(getattr(model, "head", None), "softcap", None) is not None
    return ["embedding.token"] * scaled + ["lm_head"] * bent


class _Modules:
    """The modules of a model, by name or, where a file's names are older ones, by the weight that they hold."""

    def __init__(self, model: nn.Module) -> None:
        self.names = {name for name, _ in model.named_modules()}
        self.holders: dict[bytes, list[str]] = {}
        for name, weight in model.named_parameters():
            self.holders.setdefault(_content(weight), []).append(name.rpartition(".")[0])

    def holding(self, path: str, weight: Tensor) -> str | None:
        """The module of this name, or the first with this weight that no one has asked for."""
        holders = self.holders.get(_content(weight), [])
        if path in self.names:
            return path
        return holders.pop(0) if holders else None


def _content(tensor: Tensor) -> bytes:
    kept = tensor.detach().contiguous()
    return sha256(repr(tuple(kept.shape)).encode() + kept.reshape(-1).view(torch.uint8).numpy().tobytes()).digest()


@contextmanager
def _outputs(model: nn.Module, names: set[str]) -> Iterator[dict[str, Tensor]]:
    """What each of these modules gives the first time that it runs, in the order of running."""
    gave: dict[str, Tensor] = {}

    def noting(name: str) -> Callable[[Any, Any, Any], None]:
        def note(module: nn.Module, given: Any, result: Any) -> None:
            if isinstance(result, Tensor):
                gave.setdefault(name, result.clone())  # some parts go on with it in place

        return note

    handles = [model.get_submodule(name).register_forward_hook(noting(name)) for name in names]
    try:
        yield gave
    finally:
        for handle in handles:
            handle.remove()


def _joined(group: Rule, gave: dict[str, Tensor]) -> Tensor:
    """What several modules of ours give, in the order of the one of theirs that holds all their weights."""
    parts = [gave[name].unflatten(-1, (group.heads, -1)) for name in group.ours]
    return torch.cat(parts, dim=-1).flatten(-2)


def _distance(ours: Tensor, theirs: Tensor) -> float | None:
    """The largest difference, of the largest magnitude; None where the two do not have the same shape."""
    if theirs.dim() == 4 and ours.dim() == 3:
        theirs = theirs.flatten(2).transpose(1, 2)  # a picture of patches
    ours, theirs = ours.double().squeeze(), theirs.double().squeeze()
    if ours.shape != theirs.shape:
        return None
    return ((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-30)).item()


def _inputs(lm: LanguageModel, text: str | None) -> dict[str, Tensor]:
    """What both read, under transformers' names."""
    generator = torch.Generator().manual_seed(0)
    spec = lm.spec
    if isinstance(lm.model, VisionEncoder):
        size = (1, lm.model.spec.num_channels, lm.model.spec.image_size, lm.model.spec.image_size)
        return {"pixel_values": torch.randn(size, generator=generator).to(next(lm.model.parameters()).dtype)}
    if text is not None:
        if lm.tokenizer is None:
            raise DataError("tokenizer", "the model's folder holds none", "leave --text out")
        tokens = torch.tensor([lm.tokenizer.add_special_tokens(lm.tokenizer.encode(text))])
    else:
        vocab_size = min(getattr(spec, "vocab_size", 2), getattr(spec, "source_vocab_size", None) or 2**31)
        length = min(LENGTH, spec.context_length)
        # the first ids are often padding, which transformers treats as something else than a token
        tokens = torch.randint(min(5, vocab_size - 1), vocab_size, (1, length), generator=generator)
    if isinstance(lm.model, EncoderDecoder):
        return {"input_ids": tokens, "decoder_input_ids": tokens.roll(1, 1)}
    return {"input_ids": tokens}


def _ours(lm: LanguageModel, inputs: dict[str, Tensor]) -> Tensor:
    if isinstance(lm.model, EncoderDecoder):
        output = lm.model(inputs["decoder_input_ids"], source=inputs["input_ids"])
    else:
        (tokens,) = inputs.values()
        output = lm.model(tokens)
    answer: Tensor = output.hidden if output.logits is None else output.logits
    return answer


def _theirs(lm: LanguageModel, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    if lm.family is not None and lm.family.name == "longformer":  # which tokens are global no file says
        mask = torch.zeros_like(inputs["input_ids"])
        mask[:, 0] = 1
        inputs = inputs | {"global_attention_mask": mask}
    found = model(**inputs)
    answer: Tensor = next(found[name] for name in ANSWERS if name in found)
    return answer


def _likelihoods(lm: LanguageModel, ours: Tensor, theirs: Tensor) -> tuple[float | None, float | None]:
    """KL divergence and agreement of the likeliest, where the answers are logits."""
    if getattr(lm.spec, "head", None) is not None and lm.spec.head.kind == "none":
        return None, None
    expected, found = theirs.double().log_softmax(-1), ours.double().log_softmax(-1)
    divergence = (expected.exp() * (expected - found)).sum(-1).mean()
    same = (theirs.argmax(-1) == ours.argmax(-1)).double().mean()
    return divergence.item(), same.item()
