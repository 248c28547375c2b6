"""Adapters as folders of `peft`: adapter_config.json and adapter_model.safetensors, under the base family's names.

Where a file keeps several of our matrices as one (GPT-2's c_attn), one adapter of it stands for ours: the rows of A are
those of all of them, and B has each one's columns beside its own rows.
"""

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from archetype.convert.apply import shapes_of
from archetype.errors import CheckpointError
from archetype.families import Family
from archetype.families.rules import Rule, for_model
from archetype.io import atomic
from archetype.io.files import read_json
from archetype.io.tensors import Tensors, save
from archetype.models.build import Model
from archetype.parts.adapter.module import DoRALinear, LoRALinear, adapted
from archetype.parts.adapter.spec import Adapter

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
# what a file may ask for that changes the result and is not computed here, and the values that ask for nothing
REFUSED: dict[str, tuple[Any, ...]] = {
    "bias": ("none",), "layer_replication": (None,), "lora_bias": (False,), "alora_invocation_tokens": (None,),
    "trainable_token_indices": (None,), "target_parameters": (None, []),
}  # fmt: skip
TASKS = {"ForCausalLM": "CAUSAL_LM", "LMHeadModel": "CAUSAL_LM", "ForSequenceClassification": "SEQ_CLS",
    "ForConditionalGeneration": "SEQ_2_SEQ_LM"}  # fmt: skip


def write_peft(
    model: Model, adapter: Adapter, family: Family, folder: Path, base: str, trained: Iterable[str] = ()
) -> None:
    """Write the adapter of a model into an existing folder.

    Args:
        model: with the adapter around its linear maps.
        adapter: its specification.
        family: whose names the tensors get.
        folder: exists.
        base: the model that the adapter belongs to, for adapter_config.json.
        trained: names of further parameters that learned, whose modules are written whole.

    Raises:
        CheckpointError: the format cannot express it.
    """
    rules = _rules(model, family)
    modules, state = dict(adapted(model)), model.state_dict()
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    for rule in rules:
        names = [name.removesuffix(".weight") for name in rule.params]
        if not modules.keys() & set(names):
            continue
        if not rule.hf.endswith(".weight") or rule.shape is not None or rule.expert is not None:
            raise CheckpointError(names[0], "peft has no adapter for this tensor", "export it merged")
        place = rule.hf.removesuffix(".weight")
        parts = [_low_rank(modules.get(name), state[f"{name}.weight"]) for name in names]
        order = _rows_in_file(rule, [len(b) for _, b, _ in parts])
        tensors[f"{PREFIX}{place}.lora_A.weight"] = torch.cat([a for a, _, _ in parts])
        tensors[f"{PREFIX}{place}.lora_B.weight"] = torch.block_diag(*(b for _, b, _ in parts))[order].contiguous()
        if adapter.kind == "dora":
            tensors[f"{PREFIX}{place}.lora_magnitude_vector"] = torch.cat([m for _, _, m in parts])[order]
        ranks[place] = sum(len(a) for a, _, _ in parts)
    saved = _whole_modules(rules, state, set(trained))
    tensors |= {PREFIX + name: tensor for names in saved.values() for name, tensor in names.items()}
    others = {place: rank for place, rank in ranks.items() if rank != adapter.rank}
    task = [task for end, task in TASKS.items() if family.format.architecture_of(model.spec).endswith(end)]
    atomic.write_json(folder / CONFIG, {
        "peft_type": "LORA", "task_type": task[0] if task else None, "base_model_name_or_path": base,
        "r": adapter.rank, "lora_alpha": adapter.alpha, "lora_dropout": adapter.dropout,
        "target_modules": _shortest(ranks, {rule.hf.rpartition(".")[0] for rule in rules}),
        "rank_pattern": {re.escape(place): rank for place, rank in others.items()},
        "alpha_pattern": {re.escape(p): adapter.alpha / adapter.rank * rank for p, rank in others.items()},
        "fan_in_fan_out": any(r.transposed for r in rules if r.hf.removesuffix(".weight") in ranks),
        "bias": "none", "use_dora": adapter.kind == "dora", "use_rslora": False,
        "modules_to_save": sorted(saved) or None, "inference_mode": True,
    })  # fmt: skip
    save(folder / WEIGHTS, {name: tensor.detach().contiguous() for name, tensor in tensors.items()})


@torch.no_grad()
def merge_peft(model: Model, family: Family, folder: Path) -> None:
    """Put into a base model's matrices what the adapter of a folder adds to them.

    Raises:
        CheckpointError: names the key or the tensor that is wrong, or that is not computed here.
    """
    config = read_config(folder)
    rules, state = {rule.hf: rule for rule in _rules(model, family)}, model.state_dict()
    tensors = Tensors.single(folder / WEIGHTS)
    names, updates = set(tensors.names()), dict[str, Tensor]()
    for name in sorted(names):
        place = name.removeprefix(PREFIX)
        module, is_a, _ = place.partition(".lora_A.weight")
        if not is_a and ".lora_" in place:
            if f"{PREFIX}{place.partition('.lora_')[0]}.lora_A.weight" not in names:
                raise CheckpointError(
                    f"{folder / WEIGHTS}: {name}", "is of an adapter not known here", "merge it in peft"
                )
            continue
        rule = _rule_of(f"{module}.weight" if is_a else place, rules, family, f"{folder / WEIGHTS}: {name}")
        joined, order = _joined(rule, state)
        if is_a:
            a, b = tensors.mapped(name).float(), tensors.mapped(name.replace("lora_A", "lora_B")).float()
            if (len(b), a.shape[1], len(a)) != (*joined.shape, b.shape[1]):
                raise CheckpointError(f"{folder / WEIGHTS}: {name}", "does not fit the base model", "take its own base")
            changed = joined.float() + _scale(config, module, len(a)) * (b @ a)
            if (magnitude := f"{PREFIX}{module}.lora_magnitude_vector") in names:
                changed *= (tensors.mapped(magnitude).float().flatten() / changed.norm(dim=1))[:, None]
        else:
            changed = tensors.mapped(name)
            changed = changed.T if rule.transposed else changed
        rows = torch.empty_like(joined)
        rows[order] = changed.reshape(joined.shape).to(joined.dtype)
        updates |= zip(rule.params, rows.split([len(state[param]) for param in rule.params]), strict=True)
    model.load_state_dict(state | {name: tensor.view_as(state[name]) for name, tensor in updates.items()}, assign=True)


def read_config(folder: Path) -> dict[str, Any]:
    """The adapter_config.json of a folder.

    Raises:
        CheckpointError: it asks for what is not computed here.
    """
    config, place = read_json(folder / CONFIG), folder / CONFIG
    if config.get("peft_type") != "LORA":
        cause = f"is of kind {config.get('peft_type')!r:.40}, and only LORA is read here"
        raise CheckpointError(f"{place}: peft_type", cause, "merge it in peft")
    for key, values in REFUSED.items():
        if key in config and config[key] not in values and config[key] is not None:
            raise CheckpointError(f"{place}: {key}", f"{config[key]!r:.60} is not computed here", "merge it in peft")
    for key, kind in (("r", int), ("lora_alpha", int | float), ("base_model_name_or_path", str)):
        if not isinstance(config.get(key), kind) or not config[key]:
            raise CheckpointError(f"{place}: {key}", "is missing or damaged", "write it again with save_pretrained")
    return config


def _rules(model: Model, family: Family) -> list[Rule]:
    """The rules of all tensors of the model but the adapter's own."""
    names = (*("lora_A", "lora_B", "magnitude"),)
    shapes = {name: shape for name, shape in shapes_of(model).items() if not name.endswith(names)}
    return for_model(family.format.rules_for(model.spec), model.spec.num_layers, shapes)


def _low_rank(module: LoRALinear | None, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A, B and the rows' lengths of one matrix; without an adapter, of rank 0."""
    if module is None:
        empty = weight.new_empty(0, weight.shape[1]), weight.new_empty(len(weight), 0)
        return *empty, weight.norm(dim=1)
    return module.lora_A, module.lora_B, module.magnitude if isinstance(module, DoRALinear) else weight[:, 0]


def _rows_in_file(rule: Rule, sizes: list[int]) -> Tensor:
    """Which row of our matrices, counted through all of them, each row of the file's is."""
    rows = torch.arange(sum(sizes)).split(sizes)
    return torch.cat([part.reshape(rule.heads, -1) for part in rows], dim=1).flatten()


def _joined(rule: Rule, state: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The matrix of a file, not transposed, and which of our rows each of its rows is."""
    params = [state[name] for name in rule.params]
    order = _rows_in_file(rule, [len(param) for param in params])
    return torch.cat(params)[order], order


def _whole_modules(rules: list[Rule], state: Mapping[str, Tensor], trained: set[str]) -> dict[str, dict[str, Tensor]]:
    """The tensors of every module of the file one of whose parameters learned."""
    modules: dict[str, dict[str, Tensor]] = {}
    for rule in rules:
        if trained & set(rule.params):
            modules[rule.hf.rpartition(".")[0]] = {}
    for rule in rules:
        if (module := rule.hf.rpartition(".")[0]) in modules:
            if rule.shape is not None or rule.expert is not None:
                raise CheckpointError(rule.params[0], "cannot stand beside a peft adapter", "export it merged")
            joined, _ = _joined(rule, state)
            modules[module][rule.hf] = joined.T if rule.transposed else joined
    return modules


def _shortest(places: Iterable[str], modules: set[str]) -> list[str]:
    """Modules by their last names, where every module of such a name is meant; else by their whole names."""
    places = set(places)
    ends = {place.rpartition(".")[2] for place in places}
    same = {module for module in modules if module.rpartition(".")[2] in ends}
    return sorted(ends if same == places else places)


def _rule_of(name: str, rules: Mapping[str, Rule], family: Family, place: str) -> Rule:
    """The rule of a tensor of the base, with or without the family's prefix."""
    for spelling in (name, family.format.prefix + name, name.removeprefix(family.format.prefix)):
        if (rule := rules.get(spelling)) is not None and rule.shape is None and rule.expert is None:
            return rule
    raise CheckpointError(place, "the base model has no matrix for it", "take the adapter's own base")


def _scale(config: Mapping[str, Any], module: str, rank: int) -> float:
    """The factor of a module's B A."""
    alpha = float(config["lora_alpha"])
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if re.fullmatch(rf"(.*\.)?({pattern.removeprefix('^')})", module):
            alpha = float(value)
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
