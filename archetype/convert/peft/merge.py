"""Merging of the adapter in a PEFT folder into the base model's matrices."""

import re
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from archetype.convert.peft.base import PREFIX, Base
from archetype.convert.peft.config import MERGE, REWRITE, Named, PeftConfig, read_config
from archetype.errors import CheckpointError
from archetype.families import Family
from archetype.families.rules import Rule
from archetype.io.tensors import Tensors
from archetype.models.build import Model

OWN = re.compile(r"(?P<module>.+)\.(?P<own>lora_.+)")
A, B, BIAS, MAGNITUDE = "lora_A.weight", "lora_B.weight", "lora_B.bias", "lora_magnitude_vector"
TABLE_A, TABLE_B = "lora_embedding_A", "lora_embedding_B"
OF_TRAINING = "lora_velora_"  # VeLoRA's gradient compression, which does not affect outputs
REPEATED = "belongs to one of several modules that share this tensor, which peft does not keep equal"
ASKED = {"use_dora": MAGNITUDE, "lora_bias": BIAS}  # keys that require further tensors
KNOWN = ({A, B}, {TABLE_A, TABLE_B})  # tensors of a linear layer's adapter, and of an embedding's


@torch.no_grad()
def merge_peft(model: Model, family: Family, folder: Path) -> Model:
    """Merge the adapter in a folder into a base model.

    Args:
        model: base model, changed in place.
        family: family that names the adapter's tensors.

    Returns:
        The same model, or a new model if the head is no longer tied to the embedding.

    Raises:
        CheckpointError: a key or tensor is wrong or unsupported.
    """
    config, base = read_config(folder), Base(model, family)
    tensors = Tensors.single(config.weights)
    adapters: dict[str, set[str]] = {}
    copies: set[str] = set()
    names = set(tensors.names())
    # three kinds of tensors: an adapter's, a module stored in full (modules_to_save), and a base tensor that was
    # trained
    for name in sorted(names):
        plain = name.removeprefix(PREFIX)
        if plain != name and plain in names:
            _refuse(config, name, "exists with and without this prefix", REWRITE)
        if (match := OWN.fullmatch(plain)) is not None:
            if not match["own"].startswith(OF_TRAINING):
                adapters.setdefault(match["module"], set()).add(match["own"])
        elif not config.saves(plain.rpartition(".")[0]):
            _replace(base, tensors, config, name)
        else:
            copies.add(name)
    base.tie()  # a table stored in full stays tied, an adapted one does not
    base.changed.clear()
    for name in sorted(copies):
        _replace(base, tensors, config, name)
    named, ties = config.look_up(adapters)
    for module, suffixes in adapters.items():
        adapter = _Adapter(base, tensors, config, module, named[module], suffixes)
        if not named[module].is_adapted and not (ties and base.head in adapter.rule.params):
            cause = "adapts a module that adapter_config.json does not name, so that peft ignores it"
            adapter.refuse(min(suffixes), cause, REWRITE)
        adapter.merge()
    if ties:
        base.tie()
    return base.finished()


def _replace(base: Base, tensors: Tensors, config: PeftConfig, name: str) -> None:
    plain = name.removeprefix(PREFIX).replace(".base_layer.", ".")
    rule = base.rule(plain)
    if rule is None:
        if any(re.fullmatch(pattern, plain) for pattern in base.family.format.ignored):
            return  # also ignored in the base's own file
        _refuse(config, name, "the base model has no tensor of this name", "use the adapter's base model")
    if base.is_repeated(rule):
        _refuse(config, name, REPEATED, MERGE)
    tensor, shape = tensors.mapped(name), base[rule].shape
    if tensor.shape != (shape[::-1] if rule.transposed else shape):
        _refuse(config, name, "does not fit the base model", "use the adapter's base model")
    base[rule] = tensor.T if rule.transposed else tensor


class _Adapter:
    """Adapter of a module, and the base matrix that the adapter changes.

    Args:
        module: name of the module in the base model's file.
        named: settings of the module in the configuration.
        own: suffixes of the adapter's tensor names.
    """

    def __init__(
        self, base: Base, tensors: Tensors, config: PeftConfig, module: str, named: Named, suffixes: set[str]
    ) -> None:
        self.base, self.tensors, self.config, self.module = base, tensors, config, module
        self.named, self.own, self.of_table = named, suffixes, TABLE_A in suffixes
        needed = {*KNOWN[self.of_table], *(name for key, name in ASKED.items() if config.values.get(key))}
        if strange := sorted(suffixes - needed):
            key = next((key for key, name in ASKED.items() if name == strange[0]), None)
            cause = f"requires {key}, which adapter_config.json does not set" if key else "is not supported"
            self.refuse(strange[0], cause, REWRITE if key else MERGE)
        if missing := sorted(needed - suffixes):
            self.refuse(missing[0], "is missing", "is the file complete?")
        rule = base.rule(f"{module}.weight")
        if rule is None:
            cause = "the base model has no matrix for it"
            self.refuse(min(suffixes), cause, "use the adapter's base model")
        if base.is_repeated(rule):
            self.refuse(min(suffixes), REPEATED, MERGE)
        self.rule: Rule = rule

    def merge(self) -> None:
        old = self.base[self.rule]
        matrix = old.float()
        # (rank, inputs) and (outputs, rank); an embedding's change is stored transposed
        a, b = (self._tensor(name) for name in ((TABLE_A, TABLE_B) if self.of_table else (A, B)))
        shape = matrix.T.shape if self.of_table else matrix.shape
        if a.dim() != 2 or b.dim() != 2 or (len(b), a.shape[1], len(a)) != (*shape, b.shape[1]):
            self.refuse(min(self.own), "does not fit the base model", "use the adapter's base model")
        if len(a) != self.named.rank:
            cause = f"has rank {len(a)}, but adapter_config.json says {self.named.rank}"
            self.refuse(min(self.own), cause, REWRITE)
        scale = self.config.scale(self.named)
        # (outputs, inputs)
        change = scale * (b @ a)
        # rounded to the base's type before the change is added, as when PEFT changes the base in place
        changed = self._without_beginning(matrix, scale).to(old.dtype) + (change.T if self.of_table else change)
        if MAGNITUDE in self.own:
            # DoRA: each output's row (each feature's column of an embedding) gets the learned length
            lengths = changed.norm(dim=0 if self.of_table else 1, keepdim=True)
            changed *= self._vector(MAGNITUDE, lengths.numel()).view(lengths.shape) / lengths
        self.base[self.rule] = changed.to(old.dtype)
        if BIAS in self.own:
            self._add_bias(scale)

    def _without_beginning(self, matrix: Tensor, scale: float) -> Tensor:
        # PEFT also subtracts the initial B A from the base when it loads the adapter
        rank = self.named.rank
        if self.config.residual is not None and not matrix.isfinite().all():
            cause = "was initialized from the base's matrix, which contains NaN or Inf"
            self.refuse(min(self.own), cause, "use the adapter's base model")
        match self.config.residual:
            case "pissa":  # from the largest singular values (Meng 2024)
                u, s, v = torch.linalg.svd(matrix, full_matrices=False)
                # the part of rank r that the adapter started from
                product: Tensor = (u[:, :rank] * s[:rank]) @ v[:rank]
            case "olora":  # from the first columns of Q, decomposing the matrix as stored (Büyükakyüz 2024)
                q, r = torch.linalg.qr(matrix.T if self.rule.transposed else matrix)
                product = scale * q[:, :rank] @ r[:rank]
                product = product.T if self.rule.transposed else product
            case _:
                return matrix
        return matrix - product

    def _add_bias(self, scale: float) -> None:
        rule = self.base.rule(f"{self.module}.bias")
        if rule is None:
            self.refuse(BIAS, "the base model has no bias here", "keep it in peft")
        bias = self.base[rule]
        self.base[rule] = bias + scale * self._vector(BIAS, len(bias))

    def refuse(self, suffix: str, cause: str, remedy: str) -> NoReturn:
        _refuse(self.config, self._name(suffix), cause, remedy)

    def _name(self, suffix: str) -> str:
        plain = f"{self.module}.{suffix}"
        return plain if plain in self.tensors.names() else PREFIX + plain

    def _vector(self, suffix: str, size: int) -> Tensor:
        vector = self._tensor(suffix)
        if vector.shape != (size,):
            self.refuse(suffix, "does not fit the base model", "use the adapter's base model")
        return vector

    def _tensor(self, suffix: str) -> Tensor:
        return self.tensors.mapped(self._name(suffix)).float()


def _refuse(config: PeftConfig, name: str, cause: str, remedy: str) -> NoReturn:
    raise CheckpointError(f"{config.weights}: {name}", cause, remedy)
