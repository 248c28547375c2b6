"""Memory and time of distributed training, including communication.

Bytes that each device sends and receives in a step, with N shards, T-way tensor parallelism, X-way context
parallelism, P pipeline stages and m micro-batches:

* shards (FSDP; Rajbhandari 2019, section 7; Zhao 2023): weights are gathered for forward and again for backward, and
  gradients are reduce-scattered: 3 (N - 1)/N times the weights of the device's stage, for any batch size;
* replicas (data parallelism): an all-reduce of gradients, 2 (N - 1)/N times their size;
* tensor parallelism (Shoeybi 2019, section 3): per block two all-reduces of vectors in forward and two in backward, of
  2 (T - 1)/T times sequences x tokens x D each; recomputed blocks repeat the forward collectives;
* context parallelism (Dubey 2024, section 3.3.2): keys and values of whole sequences are gathered in forward, and
  their gradients scattered in backward, (X - 1)/X times their size each; recomputed blocks gather once more;
* pipeline stages (Huang 2018; Narayanan 2021, section 2.2): vectors and gradients are sent once per micro-batch, and
  (P - 1)/m of the time of all micro-batches is idle.

Gathering and scattering weights overlaps with computation and counts only if it takes longer. Computation waits for
all other communication.
"""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from archetype.cost.formula import constant
from archetype.cost.work import FLOAT32, Work
from archetype.errors import SpecError
from archetype.estimate.memory import compute_dtype
from archetype.estimate.report import cost_report
from archetype.machine.hardware import Device
from archetype.models.spec import ModelSpec
from archetype.table import Table, size

NODE = 8  # devices of a machine with direct links
NVLINK = {"A100": 300e9, "H100": 450e9, "H200": 450e9, "B200": 900e9, "MI300X": 448e9, "MI325X": 448e9}
# bytes per second in one direction (NVIDIA's and AMD's data sheets); other devices share a PCIe 4.0 x16 bus
PCIE = 32e9
NETWORK = 50e9  # bytes per second and device between machines: 400 Gb/s
# Fraction of the peak that matrix products of a large model reach, from torchtitan's published steps; its H100 ran at
# less power than most.
UTILIZATION = {"A100": 0.65}
DEFAULT_UTILIZATION = 0.5
USABLE = 0.94  # fraction of a device's memory; the driver and the allocator need the rest
MAX_DEVICES = 1024


class Layout(NamedTuple):
    """Degrees of parallelism of a training step."""

    data_parallel: int = 1
    shard: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1

    @property
    def devices(self) -> int:
        return math.prod(self)

    @property
    def rows_shared(self) -> int:
        # number of parts into which the batch is split
        return self.data_parallel * self.shard

    @property
    def shards(self) -> int:
        # weights are also sharded over context-parallel processes, unless every process has all weights
        return self.shard * self.context if max(self.shard, self.tensor) > 1 else 1

    def __str__(self) -> str:
        return " x ".join(f"{name} {degree}" for name, degree in self._asdict().items() if degree > 1) or "one device"


class Step(NamedTuple):
    """Memory and time of a training step with one layout."""

    layout: Layout
    rows: int  # per device, at once
    micro_batches: int
    recomputes: bool
    memory: int  # bytes on the device that needs most
    compute: float  # seconds
    gathering: float  # seconds of communication of weights and gradients, which overlaps with computation
    reducing: float  # seconds of communication of vectors, for which computation waits
    bubble: float  # fraction of the time for which pipeline stages are idle
    seconds: float
    tokens: int  # of the whole batch

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds / self.layout.devices


class Cluster(NamedTuple):
    """Machines with devices of one kind."""

    device: Device
    nodes: int
    devices_per_node: int

    @classmethod
    def parse(cls, text: str, device: Device) -> "Cluster":
        """Parse NODESxGPUS, such as 16x8.

        Raises:
            SpecError: the text has a different form, or there are more than 1,024 devices.
        """
        nodes, _, devices = text.lower().partition("x")
        if not nodes.isdecimal() or not devices.isdecimal() or not 0 < int(nodes) * int(devices) <= MAX_DEVICES:
            cause = f"{text!r} is not MACHINESxDEVICES with at most {MAX_DEVICES:,} devices in total"
            raise SpecError("--plan", cause, "write it as 2x8")
        return cls(device, int(nodes), int(devices))

    @property
    def devices(self) -> int:
        return self.nodes * self.devices_per_node

    def bandwidth(self, span: int) -> float:
        """Return the bandwidth of each device in a group of `span` neighbouring devices, in bytes per second."""
        link = next((link for name, link in NVLINK.items() if self.device.name.startswith(name)), PCIE)
        return link if span <= self.devices_per_node else min(link, NETWORK)


class Planner:
    """Planner of training steps of one model on one cluster.

    Args:
        batch_size: sequences in the whole batch.
        dtype: data type of matrix products.
        cuts_vectors: whether tensor parallelism also splits vectors and logits (sequence parallelism; Korthikanti
            2022), which `archetype train` does not do.
    """

    def __init__(
        self,
        model: ModelSpec,
        cluster: Cluster,
        batch_size: int,
        length: int,
        dtype: str = "bfloat16",
        cuts_vectors: bool = False,
    ) -> None:
        self.cuts_vectors = cuts_vectors
        self.model, self.cluster, self.batch_size, self.length, self.dtype = model, cluster, batch_size, length, dtype
        name = cluster.device.name
        shares = (share for start, share in UTILIZATION.items() if name.startswith(start))
        self.speed = cluster.device.peak(dtype) * next(shares, DEFAULT_UTILIZATION)  # FLOPs per second
        self.report = cost_report(model, 1, length, dtype)
        self.itemsize = 2 if compute_dtype(dtype) == "bfloat16" else 4
        rows = [row for row in self.report.rows if row.in_block]
        self.in_blocks = sum(row.parameters for row in rows)
        self.in_passes = sum(row.parameters * row.layers // max(1, row.owners) for row in rows)  # shared: per pass
        self.beside_blocks = self.report.parameters["total"] - self.in_blocks
        self.width = int(getattr(model, "d_model", 0) or model.stacks[0].d_model)

    def steps(self) -> Iterator[Step]:
        """Yield the fastest step that fits for each possible layout, or the step with the least memory if none fits."""
        for layout in self.layouts():
            steps = [
                step
                for micro_batch in self._rows(layout)
                for step in (self.step(layout, micro_batch, r) for r in (False, True))
            ]
            yield min(steps, key=lambda step: (not self.fits(step), step.seconds if self.fits(step) else step.memory))

    def layouts(self) -> Iterator[Layout]:
        """Yield the layouts that use all devices and are possible for the model and the batch."""
        devices, layers = self.cluster.devices, self.model.num_layers
        for tensor in _divisors(min(self.cluster.devices_per_node, NODE)):
            if any(heads % tensor for heads in _heads(self.model)):
                continue
            for pipeline in _divisors(devices // tensor):
                left = devices // tensor // pipeline
                if devices % (tensor * pipeline) or pipeline > layers // 2 or not self._divides(pipeline):
                    continue
                for context in self._contexts(left) if pipeline == 1 else (1,):
                    rows_shared = left // context
                    if self.batch_size % rows_shared:
                        continue
                    # shard over all devices, or within a machine, with replicas on the others
                    for shard in {rows_shared, min(rows_shared, self.cluster.devices_per_node)}:
                        if rows_shared % shard == 0:
                            yield Layout(rows_shared // shard, shard, tensor, pipeline, context)

    def step(self, layout: Layout, micro_batch: int, recomputes: bool) -> Step:
        """Return memory and time of one step.

        Args:
            micro_batch: sequences that a device processes at once.
            recomputes: whether activation checkpointing recomputes the blocks.
        """
        own_rows = self.batch_size // layout.rows_shared
        micro_batches = -(-own_rows // micro_batch)
        flops = self.report.flops["train_recomputed" if recomputes else "train"] * self.batch_size
        uneven = self._blocks(layout) * layout.pipeline / self.model.num_layers  # above 1: the longest stage decides
        compute = flops / self.speed / layout.devices * uneven
        volumes = self.volumes(layout, micro_batch, micro_batches, recomputes)
        near = layout.tensor * layout.context
        gathering = volumes["shard"] / self.cluster.bandwidth(near * layout.shard)
        gathering += volumes["data_parallel"] / self.cluster.bandwidth(near * layout.rows_shared)
        reducing = volumes["tensor"] / self.cluster.bandwidth(layout.tensor)
        reducing += volumes["context"] / self.cluster.bandwidth(near)
        reducing += volumes["pipeline"] / self.cluster.bandwidth(layout.devices)
        bubble = (layout.pipeline - 1) / micro_batches
        # weights are gathered while computing; computation waits for everything else
        seconds = max(compute, gathering) + reducing
        seconds += bubble * (compute + reducing)
        memory = self.memory(layout, micro_batch, micro_batches, recomputes)
        tokens = self.batch_size * self.length
        return Step(
            layout,
            micro_batch,
            micro_batches,
            recomputes,
            memory,
            compute,
            gathering,
            reducing,
            bubble,
            seconds,
            tokens,
        )

    def volumes(self, layout: Layout, micro_batch: int, micro_batches: int, recomputes: bool) -> Mapping[str, float]:
        """Return the bytes that a device sends per step along each mesh dimension (formulas: see above)."""
        parameters, copies = self._parameters(layout), layout.rows_shared * layout.context // layout.shards
        vectors = micro_batch * self.length / layout.context * self.width * self.itemsize
        # parameters of blocks that several layers share are gathered for each of these layers
        again = (self.in_passes - self.in_blocks) * self._blocks(layout) / self.model.num_layers / layout.tensor
        gathers = (2 * self.itemsize + FLOAT32) * (parameters + again) * micro_batches  # gradients in each
        reduces = (6 if recomputes else 4) * self._blocks(layout) * micro_batches
        return {
            "shard": gathers * _ring(layout.shards),
            "data_parallel": 2 * FLOAT32 * parameters / layout.shards * _ring(copies),
            "tensor": reduces * 2 * vectors * _ring(layout.tensor),
            "context": (3 if recomputes else 2)
            * micro_batches
            * micro_batch
            * self._keys(layout)
            * _ring(layout.context),
            "pipeline": 2 * micro_batches * vectors * (layout.pipeline > 1),
        }

    def memory(self, layout: Layout, micro_batch: int, micro_batches: int, recomputes: bool) -> int:
        """Return the bytes on the device that needs the most memory."""
        parameters = self._parameters(layout)
        shards = layout.shards
        state = 4 * FLOAT32 * parameters / shards  # weights, gradients, two moments
        one_block = self.in_passes / self.model.num_layers / layout.tensor
        gathered = (2 * self.itemsize + FLOAT32) * one_block * (shards > 1)  # two blocks, and the gradients of one
        gathered += self.itemsize * self.beside_blocks / layout.tensor * (shards > 1)
        if shards == 1 and self.itemsize == 2:
            gathered = 2 * parameters  # the bfloat16 copies
        held = min(layout.pipeline, micro_batches)  # micro-batches that the first stage has not finished
        return int(
            state
            + gathered
            + self._activations(layout, micro_batch, recomputes) * held
            + self._logits(micro_batch) / self._cut(layout) / layout.context
            + self.length**2 / 2 / layout.context * (layout.context > 1)  # the mask, shared by layers
        )

    def fits(self, step: Step) -> bool:
        memory = self.cluster.device.memory
        return memory is None or step.memory <= USABLE * memory

    def _parameters(self, layout: Layout) -> float:
        in_stage = self.in_blocks * self._blocks(layout) / self.model.num_layers
        return (in_stage + self.beside_blocks) / layout.tensor

    def _blocks(self, layout: Layout) -> int:
        return -(-self.model.num_layers // layout.pipeline)

    def _activations(self, layout: Layout, micro_batch: int, recomputes: bool) -> float:
        # Bytes of the blocks of one stage. Tensor parallelism splits the activations inside contents, but every process
        # has all norms and inputs of contents (unless sequence parallelism splits these, too).
        cost, forward = self.report.cost, Work(constant(micro_batch), constant(self.length), "forward")
        work = forward.in_training(compute_dtype(self.dtype))
        inputs = micro_batch * self.length * self.width
        keys = micro_batch * self._keys(layout) * (1 - 1 / layout.context)  # of other devices
        total = largest = 0.0
        for stack in cost.stacks:
            for group in stack.groups:
                contents = tuple(group.cost.contents)
                whole = group.cost.wiring.saved_activations(contents, work) + len(contents) * inputs * work.itemsize
                block = group.cost.saved_activations(work)
                block_bytes = min(block, whole) / self._cut(layout) + max(0, block - whole) / layout.tensor
                total, largest = total + block_bytes * len(group.layers), max(largest, block_bytes)
        if recomputes:
            inputs_of_blocks = self._blocks(layout) * inputs * self.itemsize / self._cut(layout)
            return (inputs_of_blocks + largest) / layout.context + keys / self._blocks(layout)
        return total * self._blocks(layout) / self.model.num_layers / layout.context + keys

    def _keys(self, layout: Layout) -> float:
        # bytes of the keys and values of one whole sequence, in the blocks of one stage
        if layout.context == 1:
            return 0.0
        elements = 0.0
        for stack in self.report.cost.stacks:
            for group in stack.groups:
                for mixer in group.cost.mixer.each():
                    cut = layout.tensor if mixer.divides_state else 1
                    elements += len(group.layers) * mixer.state(1) / cut
        return elements * self.length * self.itemsize

    def _contexts(self, devices: int) -> list[int]:
        blocks = [block for stack in self.model.stacks for block in stack.layers]
        parts = [part for block in blocks for content in block.contents.values() for part in content.each()]
        if not self.model.shares_positions or any(part.needs_whole_rows is not None for part in parts):
            return [1]
        return [degree for degree in _divisors(devices) if degree == 1 or self.length % (2 * degree) == 0]

    def _divides(self, num_stages: int) -> bool:
        # whether stages need nothing from each other but the vectors of the previous stage
        stacks = self.model.stacks
        return num_stages == 1 or all(
            stack.divides and stack.used_of_other_stage(num_stages) is None for stack in stacks
        )

    def _cut(self, layout: Layout) -> int:
        return layout.tensor if self.cuts_vectors else 1

    def _logits(self, micro_batch: int) -> float:
        saved = self.report.memory_cost.saved_activations(micro_batch, self.length)
        return saved.logits + saved.loss_gradient

    def _rows(self, layout: Layout) -> list[int]:
        of_device = self.batch_size // layout.rows_shared
        most = of_device if layout.pipeline == 1 else max(1, of_device // layout.pipeline)
        return [micro_batch for micro_batch in _divisors(of_device) if micro_batch <= most]


def best_steps(planner: Planner, sizes: Mapping[str, int] | None = None) -> list[Step]:
    """Return the best step of each layout that fits, fastest first.

    Args:
        sizes: required degrees of parallelism, keyed by name (absent: any degree).

    Raises:
        SpecError: no layout fits, or no layout has these sizes.
    """
    steps = [*planner.steps()]
    if sizes:
        steps = [step for step in steps if sizes.items() <= step.layout._asdict().items()]
        if not steps:
            required = ", ".join(f"{name} {size}" for name, size in sizes.items())
            cause = f"no layout of {planner.cluster.devices} devices for this model and batch has {required}"
            raise SpecError("parallel", cause, "remove one of the sizes so that the planner chooses it")
    fitting = sorted((step for step in steps if planner.fits(step)), key=lambda step: step.seconds)
    if not fitting:
        least = min(steps, key=lambda step: step.memory, default=None)
        needs = "" if least is None else f"; the smallest needs {size(least.memory)} per device ({least.layout})"
        cause = f"no layout of {planner.cluster.devices} x {planner.cluster.device.name} fits{needs}"
        raise SpecError("--plan", cause, "use more devices, a smaller batch or shorter sequences")
    return fitting


def plan_table(planner: Planner, steps: list[Step]) -> Table:
    """Return a table of memory and throughput of each step."""
    headings = ["layout", "rows at once", "recompute", "memory", "tokens/s a device", "seconds", "waits", "MFU"]
    return Table(headings, [_cells(planner, step) for step in steps])


def _cells(planner: Planner, step: Step) -> list[str]:
    waits = 1 - step.compute / step.seconds
    useful = planner.report.flops["train"] * planner.batch_size / step.seconds / step.layout.devices
    share = useful / planner.cluster.device.peak(planner.dtype)
    return [
        str(step.layout),
        f"{step.rows}",
        "blocks" if step.recomputes else "none",
        size(step.memory),
        f"{step.tokens_per_second:,.0f}",
        f"{step.seconds:.3g}",
        f"{waits:.0%}",
        f"{share:.0%}",
    ]


def _heads(model: ModelSpec) -> set[int]:
    # the numbers of query and key/value heads of all attention layers
    return {
        heads
        for stack in model.stacks
        for block in stack.layers
        for mixer in block.mixer.each()
        if (sizes := mixer.attention_sizes(stack.d_model)) is not None
        for heads in sizes[:2]
    }


def _divisors(n: int) -> list[int]:
    return [divisor for divisor in range(1, n + 1) if n % divisor == 0]


def _ring(devices: int) -> float:
    # the fraction of a tensor that a device sends in a ring all-gather or reduce-scatter
    return (devices - 1) / devices
