"""Predicted memory and throughput of training on many GPUs, beside what torchtitan has published for Llama 3.

Run: python -m benchmarks.parallel_plan

Sources: github.com/pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md at commit 31a17bf, and, of 64 A100,
docs/performance.md as it was in 2024.
"""

from typing import NamedTuple

from archetype.estimate.parallel import Cluster, Layout, Planner
from archetype.families import preset
from archetype.machine.hardware import device
from archetype.table import Table

H100 = "torchtitan 31a17bf, H100"
A100 = "torchtitan, docs/performance.md of 2024, A100"


class Published(NamedTuple):
    """A row of a published table, in bfloat16, with rows of 8,192 tokens."""

    model: str
    cluster: str
    device: str
    layout: Layout
    rows: int  # of a device, at once
    recomputed: str
    tokens_per_second: float  # of one device
    gibibytes: float | None
    source: str


ON_8, ON_128, ON_64 = Layout(shard=8), Layout(shard=128), Layout(shard=64)
ON_256 = Layout(shard=32, tensor=8)
ROWS = (
    Published("llama-3-8b", "1x8", "H100-SXM", ON_8, 2, "some operations", 5762, 82.4, f"{H100}, table 1"),
    Published("llama-3-8b", "1x8", "H100-SXM", ON_8, 2, "some operations", 6667, 77.0, f"{H100}, table 1, compiled"),
    Published("llama-3-8b", "16x8", "H100-SXM", ON_128, 2, "some operations", 5605, 67.0, f"{H100}, table 3"),
    Published("llama-3-8b", "16x8", "H100-SXM", ON_128, 2, "some operations", 6514, 62.0, f"{H100}, table 3, compiled"),
    Published("llama-3-70b", "32x8", "H100-SXM", ON_256, 16, "blocks", 829, 71.9, f"{H100}, table 4, in 8 bits"),
    Published("llama-3-8b", "8x8", "A100-80GB", ON_64, 1, "every other block", 2904, None, A100),
    Published("llama-3-70b", "8x8", "A100-80GB", ON_64, 1, "blocks", 331, None, A100),
)


def main() -> None:
    """Print the table."""
    cells = []
    for row in ROWS:
        cluster = Cluster.parse(row.cluster, device(row.device))
        planner = Planner(preset(row.model), cluster, row.rows * row.layout.rows_shared, 8192, cuts_vectors=True)
        steps = [planner.step(row.layout, row.rows, recomputes) for recomputes in (True, False)]
        published = "" if row.gibibytes is None else f"{row.gibibytes:.1f}"
        cells.append([
            f"{row.model}, {row.cluster} {row.device}, {row.layout}, {row.rows} x 8,192 a GPU, {row.recomputed}",
            row.source,
            f"{row.tokens_per_second:,.0f}", " to ".join(f"{step.tokens_per_second:,.0f}" for step in steps),
            published, " to ".join(f"{step.memory / 2**30:.1f}" for step in steps),
        ])  # fmt: skip
    columns = ["", "source", "tokens/s and GPU", "predicted: blocks to nothing recomputed", "GiB", "predicted"]
    print(Table(columns, cells, text_columns=2).text(400))


if __name__ == "__main__":
    main()
