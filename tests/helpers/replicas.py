"""One of several processes that train a model together; a program, `python -m tests.helpers.replicas`.

Started without pytest, so that the modules are those that a person has, without checks of shapes.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from archetype.models.build import build
from tests.helpers.inputs import ROWS, example_inputs
from tests.helpers.passes import logits_or_hidden
from tests.helpers.specs import ALL, block, decoder, experts
from tests.helpers.weights import distance, randomize

BALANCED = decoder(block(), block(feedforward=experts(balance_loss=0.1)))
SPECS = {
    name: ALL[name]
    for name in ("attention", "latent", "mamba", "lstm", "encoder", "encoder-decoder", "encoder-decoder, bridge",
                 "n-gram", "megabyte", "picture")
} | {"balanced experts": BALANCED}  # fmt: skip


def gradients(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of the mean square of the logits, and of what parts add to the loss."""
    output = model(**inputs)
    loss = logits_or_hidden(output).square().mean()
    (loss if output.aux_loss is None else loss + output.aux_loss).backward()
    return {name.removeprefix("module."): p.grad for name, p in model.named_parameters() if p.grad is not None}


def main(rank: int, world_size: int, file: Path) -> None:
    """Compare the gradients of all processes' rows with the mean that one process computes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=file.as_uri(), rank=rank, world_size=world_size)
    share = ROWS // world_size
    for name, spec in SPECS.items():
        inputs = example_inputs(spec)
        parts = [{key: value[r * share : (r + 1) * share] for key, value in inputs.items()} for r in range(world_size)]
        alone = [gradients(randomize(build(spec)).train(), part) for part in parts]
        replica = DistributedDataParallel(randomize(build(spec)).train())
        together = gradients(replica, parts[rank])
        assert together.keys() == alone[0].keys()
        for tensor, gradient in together.items():
            mean = torch.stack([one[tensor] for one in alone]).mean(0)
            assert distance(gradient, mean) < 1e-5, f"{name}: {tensor}"
            differ = world_size == 1 or not mean.any() or distance(alone[rank][tensor], mean) > 1e-4
            assert differ, f"{name}: {tensor} would pass without any exchange"
        print(name, flush=True)
    time.sleep(0.2)  # as `process_group` does when a run ends
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
