"""Export of a model's adapter as a PEFT folder, under the names of the base model's family.

If a file joins several matrices (GPT-2's c_attn), their adapters become a single adapter of the joint matrix: A
stacks their rows, and B is block-diagonal.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from archetype.convert.peft.base import PREFIX, joined, rows_in_file, rules_of
from archetype.convert.peft.config import CONFIG, WEIGHTS
from archetype.convert.peft.names import TIED
from archetype.errors import CheckpointError
from archetype.families import Family
from archetype.families.rules import Rule
from archetype.io import atomic
from archetype.io.tensors import save
from archetype.models.build import Model
from archetype.parts.adapter.module import DoRALinear, LoRALinear, adapted
from archetype.parts.adapter.spec import Adapter

TASKS = {
    "ForCausalLM": "CAUSAL_LM",
    "LMHeadModel": "CAUSAL_LM",
    "ForSequenceClassification": "SEQ_CLS",
    "ForConditionalGeneration": "SEQ_2_SEQ_LM",
}


def write_peft(
    model: Model, adapter: Adapter, family: Family, folder: Path, base: str, trained: Iterable[str] = ()
) -> None:
    """Write a model's adapter into an existing folder.

    Args:
        family: family that names the tensors.
        base: name or path of the base model, for adapter_config.json.
        trained: names of other trained parameters, whose modules are written in full.

    Raises:
        CheckpointError: PEFT's format cannot express the adapter.
    """
    rules = rules_of(model, family)
    modules, state = dict(adapted(model)), model.state_dict()
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    for rule in rules:
        names = [name.removesuffix(".weight") for name in rule.params]
        if not modules.keys() & set(names):
            continue
        if not rule.hf.endswith(".weight") or rule.is_reshaped or rule.share is not None:
            raise CheckpointError(names[0], "peft has no adapter for this tensor", "export the merged model")
        path = rule.hf.removesuffix(".weight")
        parts = [_low_rank(modules.get(name), state[f"{name}.weight"]) for name in names]
        # the file's order of rows: B's rows are outputs, so only they (and DoRA's magnitudes) are reordered
        order = rows_in_file(rule, [len(b) for _, b, _ in parts])
        tensors[f"{PREFIX}{path}.lora_A.weight"] = torch.cat([a for a, _, _ in parts])
        tensors[f"{PREFIX}{path}.lora_B.weight"] = torch.block_diag(*(b for _, b, _ in parts))[order].contiguous()
        if adapter.kind == "dora":
            tensors[f"{PREFIX}{path}.lora_magnitude_vector"] = torch.cat([m for _, _, m in parts])[order]
        ranks[path] = sum(len(a) for a, _, _ in parts)  # the rank of a block-diagonal B times stacked A
    trained = set(trained)
    saved = _whole_modules(rules, state, trained)
    table = [name for name in trained if model.get_parameter(name) is model.token_table]
    is_tied = bool(table) and model.spec.head.shares_table
    if table and (model.spec.reads_source or (is_tied and not {name.rpartition(".")[2] for name in saved} & {*TIED})):
        cause = "is shared by several modules, but peft would only train one of them"
        raise CheckpointError(table[0], cause, "export the merged model")
    tensors |= {PREFIX + name: tensor for names in saved.values() for name, tensor in names.items()}
    # longest names first, because the first pattern that matches the end of a name decides
    other_ranks = {path: ranks[path] for path in sorted(ranks, key=len, reverse=True) if ranks[path] != adapter.rank}
    task = [task for end, task in TASKS.items() if family.format.architecture_of(model.spec).endswith(end)]
    atomic.write_json(
        folder / CONFIG,
        {
            "peft_type": "LORA",
            "task_type": task[0] if task else None,
            "base_model_name_or_path": base,
            "r": adapter.rank,
            "lora_alpha": adapter.alpha,
            "lora_dropout": adapter.dropout,
            "target_modules": _shortest(ranks, {rule.hf.rpartition(".")[0] for rule in rules}),
            "rank_pattern": {re.escape(path): rank for path, rank in other_ranks.items()},
            # PEFT divides by each rank, so alpha grows with it and the factor stays alpha / rank
            "alpha_pattern": {re.escape(p): adapter.alpha / adapter.rank * rank for p, rank in other_ranks.items()},
            "fan_in_fan_out": any(r.transposed for r in rules if r.hf.removesuffix(".weight") in ranks),
            "bias": "none",
            "use_dora": adapter.kind == "dora",
            "use_rslora": False,
            "modules_to_save": sorted(saved) or None,
            "ensure_weight_tying": is_tied,
            "inference_mode": True,
        },
    )
    save(folder / WEIGHTS, {name: tensor.detach().contiguous() for name, tensor in tensors.items()})


def _low_rank(module: LoRALinear | None, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # A (rank, inputs), B (outputs, rank) and DoRA's magnitudes (outputs,); rank 0 without an adapter
    if module is None:
        empty = weight.new_empty(0, weight.shape[1]), weight.new_empty(len(weight), 0)
        return *empty, weight.norm(dim=1)
    return module.lora_A, module.lora_B, module.magnitude if isinstance(module, DoRALinear) else weight[:, 0]


def _whole_modules(rules: list[Rule], state: Mapping[str, Tensor], trained: set[str]) -> dict[str, dict[str, Tensor]]:
    # module -> its tensors, for every module of the file that has a trained parameter
    modules: dict[str, dict[str, Tensor]] = {}
    for rule in rules:
        if trained & set(rule.params):
            modules[rule.hf.rpartition(".")[0]] = {}
    for rule in rules:
        if (module := rule.hf.rpartition(".")[0]) in modules:
            if rule.is_reshaped or rule.share is not None:
                raise CheckpointError(
                    rule.params[0], "cannot be saved next to a PEFT adapter", "export the merged model"
                )
            tensor = joined(rule, state)
            modules[module][rule.hf] = tensor.T if rule.transposed else tensor
    return modules


def _shortest(paths: Iterable[str], modules: set[str]) -> list[str]:
    # the last parts of the names suffice if every module with such a name has an adapter
    paths = set(paths)
    ends = {path.rpartition(".")[2] for path in paths}
    same = {module for module in modules if module.rpartition(".")[2] in ends}
    return sorted(ends if same == paths else paths)
