"""Tensors of a base model under the names in its family's files, where one tensor may join several matrices."""

from collections.abc import Mapping

import torch
from torch import Tensor

from archetype.convert.apply import published_shapes
from archetype.errors import CheckpointError
from archetype.families import Family
from archetype.families.rules import Rule, for_model
from archetype.models.build import Model, build_on_meta

PREFIX = "base_model.model."


def rules_of(model: Model, family: Family) -> list[Rule]:
    """Return the weight rules of a model without its adapter."""
    names = ("lora_A", "lora_B", "magnitude")
    shapes = {name: shape for name, shape in published_shapes(model).items() if not name.endswith(names)}
    return for_model(family.format.rules_for(model.spec), model.spec.num_layers, shapes)


def rows_in_file(rule: Rule, sizes: list[int]) -> Tensor:
    """Return the index in the rule's concatenated parameters for each row of the file's tensor."""
    row_indices = torch.arange(sum(sizes)).split(sizes)  # indices of each parameter's rows
    # the order in which `apply` joins parameters: head by head, each head's rows of all of them
    return torch.cat([part.reshape(rule.heads, -1) for part in row_indices], dim=1).flatten()


def joined(rule: Rule, state: Mapping[str, Tensor]) -> Tensor:
    """Return a tensor as stored in the file; matrices are (outputs, inputs)."""
    params = [_own(rule, state[name]) for name in rule.params]
    return torch.cat(params)[rows_in_file(rule, [len(param) for param in params])]


def _own(rule: Rule, param: Tensor) -> Tensor:
    return param if rule.share is None else param[rule.share]


class Base:
    """Base model whose tensors can be read and replaced under their checkpoint names.

    A tied head is untied while tensors change. `finished` ties it again if the head still equals the embedding.

    Args:
        model: model without an adapter.
        family: family that names the tensors.
    """

    def __init__(self, model: Model, family: Family) -> None:
        self.model, self.family = model, family
        self.state, self.changed = dict(model.state_dict()), set[str]()
        self.untied, self.table, self.head = None, "", ""
        rules = rules_of(model, family)
        if model.spec.head.shares_table:
            untied = build_on_meta(model.spec.replace(head=model.spec.head.replace(tied=False)))
            try:
                rules, self.untied = rules_of(untied, family), untied
            except CheckpointError:  # the format has no name for an untied head
                pass
            else:
                (self.head,) = untied.state_dict().keys() - self.state.keys()
                (self.table,) = [
                    name for name, tensor in model.state_dict(keep_vars=True).items() if tensor is model.token_table
                ]
                self.state[self.head] = self.state[self.table]
        self.rules = {rule.hf: rule for rule in rules}

    def rule(self, name: str) -> Rule | None:
        """Return the rule for a tensor name, with or without the family's prefix; None if no rule matches."""
        prefix = self.family.format.prefix
        names = (name, prefix + name, name.removeprefix(prefix))
        rule = next((self.rules[spelling] for spelling in names if spelling in self.rules), None)
        # a tensor of another shape than its parameter has no matrix that an adapter could change
        return rule if rule is None or not rule.is_reshaped else None

    def is_repeated(self, rule: Rule) -> bool:
        """Return whether modules other than the head share this tensor in transformers. PEFT does not sync them."""
        copies = self.family.format.copies.items()
        return any(param in rule.params and name not in self.rules for name, param in copies)

    def __getitem__(self, rule: Rule) -> Tensor:
        """Return a tensor as stored in the file; matrices are (outputs, inputs)."""
        return joined(rule, self.state)

    def __setitem__(self, rule: Rule, tensor: Tensor) -> None:
        sizes = [len(_own(rule, self.state[name])) for name in rule.params]
        stacked = torch.empty_like(tensor)
        # the inverse of `joined`
        stacked[rows_in_file(rule, sizes)] = tensor
        for name, part in zip(rule.params, stacked.split(sizes), strict=True):
            old = self.state[name]
            self.changed.add(name)
            if rule.share is None:
                self.state[name] = part.to(old.dtype).reshape(old.shape)
            else:
                self.state[name] = old.clone()
                self.state[name][rule.share] = part

    def tie(self) -> None:
        """Copy a changed embedding table to the tied head."""
        if self.untied is not None and self.table in self.changed:
            self.state[self.head] = self.state[self.table]

    def finished(self) -> Model:
        """Return the changed model. The head stays untied if head and embedding differ now."""
        model, state = self.model, self.state
        if self.untied is not None:
            if torch.equal(state[self.head], state[self.table]):
                del state[self.head]
            else:
                model = self.untied.train(model.training)
        model.load_state_dict(state, assign=True)
        return model
