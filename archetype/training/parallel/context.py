"""Context parallelism: each process has some positions of every row, and attention gathers all keys and values.

The gradients of gathered tensors are summed and scattered in the backward pass (Dubey 2024, section 3.3.2).
"""

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from archetype.nn.shared_rows import PositionShares
from archetype.training.objectives.base import IGNORED, Batch, Counts, LossOutput, Objective


class ContextParallel(PositionShares):
    """Positions of every row that this process computes, and the mesh of the processes that share each row."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__(mesh.get_local_rank(), mesh.size())
        self.mesh = mesh

    def gather(self, x: Tensor) -> Tensor:
        """Gather all positions (dimension 2), in order, from all processes."""
        shares = DTensor.from_local(x, self.mesh, [Shard(2)], run_check=False)  # (B, H, T / processes, d)
        # all-gather in the forward pass; Partial makes it a reduce-scatter of the gradients in the backward pass
        gathered = shares.redistribute(self.mesh, [Replicate()]).to_local(grad_placements=[Partial()])
        # each process has two pieces of a row, from both ends, so that a causal mask gives all equal work
        return self.in_order(gathered)

    def target_counts(self, objective: Objective, batch: Batch) -> Counts:
        """Return the number of targets at the positions of this process."""
        return (int((self.own(objective.inputs_and_targets(batch)[1]) != IGNORED).sum()),)

    def compute_loss(self, objective: Objective, model: nn.Module, batch: Batch, counts: Counts) -> LossOutput:
        """Compute the loss at this process's positions. Without a target, use an arbitrary target, whose share is 0."""
        inputs, targets = objective.inputs_and_targets(batch)
        targets = self.own(targets)
        if counts[0] == 0:  # the mean of no losses is undefined
            targets[0, 0], counts = 0, (1,)
        return objective.loss_of(model, {**inputs, "shares": self}, targets, counts)
