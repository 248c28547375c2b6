"""Logits and gradients of models whose matrices two processes share, checked in each against those of whole models."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from archetype import spec
from archetype.models.build import build
from archetype.training.parallel.shards import whole
from archetype.training.parallel.tensor import share_tensors
from archetype.training.processes import launched
from tests.helpers.positions import LATENT, OTHERS, SEPARATE
from tests.helpers.specs import ALL, block, decoder, experts, mixed
from tests.helpers.weights import distance, randomize

NARROW = {"norm": {"kind": "layer"}, "bias": True, "query": {"kind": "low_rank", "rank": 5}}
TIED = {"kind": "language_model", "tied": True, "bias": True}
MEGABYTE = ALL["megabyte"]
MODELS = {
    **SEPARATE, **OTHERS, "narrow queries": mixed(**LATENT, **NARROW), "experts": decoder(block(feedforward=experts())),
    "n-gram": ALL["n-gram"], "mamba": ALL["mamba"], "megabyte": MEGABYTE,
    "tied megabyte": spec.parse(MEGABYTE.dump() | {"head": TIED}),
}  # fmt: skip
WHOLE = {  # the first parts that every process computes whole
    "relative": ["position_bias"], "experts": ["blocks.0.feedforward.router"], "mamba": ["blocks.0.mixer"],
    "grouped": [], "latent": [], "narrow queries": [], "alibi": [],
}  # fmt: skip


def check(name: str, model_spec: spec.ModelSpec, mesh: DeviceMesh) -> None:
    """Equal to what one process computes."""
    model = randomize(build(model_spec, seed=1)).train()
    tokens = torch.randint(16, (2, 12), generator=torch.Generator().manual_seed(0))
    expected = model(tokens).logits
    expected.square().mean().backward()
    gradients = {path: weight.grad for path, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    parts = share_tensors(model, mesh)
    assert parts[:1] == WHOLE.get(name, parts[:1]), name
    logits = model(tokens).logits
    logits.square().mean().backward()
    assert distance(logits, expected) < 1e-5, name
    for path, gradient in gradients.items():
        shared = model.get_parameter(path).grad
        assert shared is not None and distance(whole(shared), gradient) < 1e-4, f"{name}: {path}"


def check_all() -> None:
    """What each of the processes does."""
    torch.set_num_threads(1)
    with launched(torch.device("cpu")):
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for name, model in MODELS.items():
            check(name, model, mesh)


if __name__ == "__main__":
    check_all()
