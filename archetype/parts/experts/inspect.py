"""Experts of each token in a recorded pass, and how evenly they are used."""

import torch

from archetype.nn.inspect import PartTrace, Routing, Shown
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.spec.registry import provides


def routing(part: PartTrace) -> Routing:
    """Return experts, weights and load of all tokens, and the entropy of their affinities."""
    chosen, weights, logits = (part.activations[name] for name in ("chosen", "weights", "router_logits"))
    affinities = part.module.router.affinities(logits)
    shares = affinities / affinities.sum(-1, keepdim=True)
    selections = torch.bincount(chosen.flatten(), minlength=logits.shape[1])[: logits.shape[1]].float()
    load = selections / selections.sum()
    return Routing(part.path, chosen, weights, load, torch.special.entr(shares).sum(-1))


provides("inspect", MixtureOfExperts)(Shown(routing=routing))
