"""Loss and gradients of models whose positions several processes share, checked in each against those of whole rows."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from archetype import spec
from archetype.models.build import build
from archetype.training.block_execution import recompute_blocks
from archetype.training.objectives.base import IGNORED, Batch, Objective
from archetype.training.parallel.context import ContextParallel
from archetype.training.processes import launched
from tests.helpers.specs import ATTENTION, PLAIN_ENCODER, READER, attending, block, decoder, encoder, experts, mixed

ROWS, LENGTH = 2, 24
ROTARY = {"position": {"kind": "rotary"}}
LATENT = {
    "kind": "latent", "num_heads": 2, "kv_lora_rank": 6, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4,
    "v_head_dim": 6,
}  # fmt: skip


def seeing(**pattern: Any) -> spec.ModelSpec:
    """An encoder with a sparse pattern and a head for tokens."""
    attention = {"kind": "attention", "num_heads": 4, "pattern": pattern} | ROTARY
    layer = {"wiring": {"kind": "post_norm", "norm": {"kind": "layer"}}, **PLAIN_ENCODER, "mixer": attention}
    return encoder(layers=[layer, layer], head={"kind": "masked_language_model", "activation": "gelu"})


SEPARATE = {  # models that keep documents apart
    "grouped": attending(**ROTARY),
    "window": attending(**ROTARY, pattern={"kind": "window", "size": 5}, softcap=3.0),
    "alibi": attending(position={"kind": "alibi"}),
    "relative": attending(position={"kind": "relative_bias", "num_buckets": 8, "max_distance": 16}),
    "latent": mixed(**LATENT),
}
OTHERS = {
    "additive": attending(score="additive", sinks=True),
    "strided": attending(pattern={"kind": "strided", "stride": 4}, query_scale={"beta": 0.5, "length": 4}),
    "fixed": attending(pattern={"kind": "fixed", "stride": 4, "num_summary": 1}),
    "tables": decoder(
        block(
            mixer=ATTENTION | ROTARY | {"value_embedding": {"gate": {"features": 5}}},
            feedforward=experts(router={"kind": "hash"}),
        ),
        READER,
        embedding={"per_layer": {"features": 6}},
    ),
    "both ways": encoder(head={"kind": "masked_language_model", "activation": "gelu"}),
    "global": seeing(kind="global_window", size=3, num_global_tokens=2),
    "big bird": seeing(kind="bigbird", block=4, window_blocks=1, global_blocks=2, random_blocks=1, seed=0),
}  # fmt: skip


class Rows(Objective):
    """Rows of random tokens, perhaps of several documents, and what is to be predicted at each."""

    def batch(self, step: int) -> Batch:
        """Tokens, targets and documents; where the step is 1, the first quarter of a row alone has targets."""
        generator = torch.Generator().manual_seed(step)
        tokens, targets = torch.randint(31, (2, ROWS, LENGTH), generator=generator)
        targets[:, 3::7] = IGNORED
        if step == 1:
            targets[:, LENGTH // 4 :] = IGNORED
        documents = torch.tensor([[5, 14, LENGTH], [9, 10, LENGTH]])
        return (
            tokens,
            targets,
            torch.stack([torch.bucketize(torch.arange(LENGTH), row, right=True) for row in documents]),
        )

    def validation_batch(self, index: int) -> Batch:
        """None are held out."""
        raise NotImplementedError

    def inputs_and_targets(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Tokens with their documents, where a batch has them."""
        tokens, targets, *documents = batch
        return {"tokens": tokens} | ({"document_ids": documents[0]} if documents else {}), targets


def check(name: str, model_spec: spec.ModelSpec, batch: Batch, mesh: DeviceMesh, recomputes: bool = False) -> None:
    """The processes' losses and gradients sum to those of one; outside the loss a process computes whole rows alone."""
    model, objective = build(model_spec, seed=1).train(), Rows()
    inputs, _ = objective.inputs_and_targets(batch)
    logits = model(**inputs).logits
    loss = objective.compute_loss(model, batch).loss
    loss.backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    if recomputes:
        recompute_blocks(model, "blocks")
    context = ContextParallel(mesh)
    counts = context.target_counts(objective, batch)
    own = context.compute_loss(objective, model, batch, counts).loss * (counts[0] / objective.num_targets(batch))
    own.backward()
    total = own.detach().clone()
    dist.all_reduce(total)
    torch.testing.assert_close(total, loss.detach(), msg=lambda text: f"{name}: {text}")
    for path, gradient in gradients.items():
        summed = model.get_parameter(path).grad
        assert summed is not None, f"{name}: {path}"
        dist.all_reduce(summed)
        torch.testing.assert_close(summed, gradient, atol=1e-6, rtol=1e-4, msg=lambda text: f"{name}: {path}: {text}")  # noqa: B023
    if dist.get_rank() == 0:
        torch.testing.assert_close(model(**inputs).logits, logits)


def check_all() -> None:
    """What each of the processes does."""
    torch.set_num_threads(1)
    with launched(torch.device("cpu")):
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        tokens, targets, documents = Rows().batch(0)
        for name, model in (SEPARATE | OTHERS).items():
            check(name, model, (tokens, targets), mesh, recomputes=name in ("grouped", "relative"))
        for name, model in SEPARATE.items():
            check(f"{name} of documents", model, (tokens, targets, documents), mesh)
        check("without targets", SEPARATE["grouped"], Rows().batch(1)[:2], mesh)


if __name__ == "__main__":
    check_all()
