"""Patches of bytes: the FLOPs that they save compared with a model over bytes."""

from typing import Any

from archetype.estimate.report import cost_report
from archetype.models.block.spec import Block, PreNorm
from archetype.models.decoder.spec import Decoder
from archetype.models.megabyte.spec import MegaByte
from archetype.models.stack.spec import SizedStack
from archetype.parts.attention.spec import Attention
from archetype.parts.feedforward.spec import GatedMLP
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.position.spec import Rotary
from archetype.spec.repeats import repeat
from archetype.studies.outcome import Axes, Control, Curve, Outcome
from archetype.studies.registry import check
from claims.fit import power_law

LENGTH = 512


def stack(d_model: int, layers: int, head_dim: int) -> dict[str, Any]:
    """Return layers of Llama's design, 8/3 d wide."""
    norm = RMSNorm()
    layer = Block(
        wiring=PreNorm(norm=norm),
        mixer=Attention(num_heads=d_model // head_dim, position=Rotary()),
        feedforward=GatedMLP(d_ff=8 * d_model // 3, activation="silu"),
    )
    return {"d_model": d_model, "layers": repeat(layers, layer), "final_norm": norm}


def plain() -> Decoder:
    return Decoder(vocab_size=256, context_length=LENGTH, **stack(96, 4, 32))


def patched(patch_size: int = 8) -> MegaByte:
    """Return a wide model over patches with a narrow one within each."""
    return MegaByte(
        context_length=LENGTH, patch_size=patch_size,
        global_model=SizedStack(**stack(192, 4, 48)), local_model=SizedStack(**stack(64, 3, 16)),
    )  # fmt: skip


@check("patches.flops", claim=19, part="a", kind="analytic")
def flops(quick: bool) -> Outcome:
    """A model over patches of 8 bytes has 4 times the parameters of one over bytes, and takes fewer FLOPs a byte."""
    reports = {"bytes": cost_report(plain(), length=LENGTH), "patches": cost_report(patched(), length=LENGTH)}
    per_byte = {name: report.flops["forward"] / LENGTH for name, report in reports.items()}
    dense = {
        name: sum(row.forward for row in report.rows if row.parameters) / LENGTH for name, report in reports.items()
    }
    parameters = {name: report.parameters["total"] for name, report in reports.items()}
    times = parameters["patches"] / parameters["bytes"]
    one = cost_report(patched(1), length=LENGTH).flops["forward"] / LENGTH
    lengths = [2**power for power in range(6, 22, 3)]
    best = [min((pairs(length, size), size) for size in range(1, length + 1)) for length in lengths]
    grows = power_law(lengths, [least for least, _ in best]).slope
    sizes = power_law(lengths, [size for _, size in best])
    x = tuple(map(float, lengths))
    axes: Axes = {"x_name": "bytes", "y_name": "pairs of positions", "log_x": True, "log_y": True}
    return Outcome(
        per_byte["patches"] < per_byte["bytes"] and 4 <= times <= 4.6 and abs(grows - 4 / 3) <= 0.02,
        f"patches of 8 take {per_byte['patches'] / 1e6:.2f} M FLOPs a byte against {per_byte['bytes'] / 1e6:.2f} M "
        f"({dense['patches'] / 1e6:.2f} and {dense['bytes'] / 1e6:.2f} M without attention's pairs), with {times:.1f} "
        f"times the parameters; pairs T^2/P^2 + T P are least near P = (2 T)^(1/3) (power {sizes.slope:.2f}) and grow "
        "as "
        f"T to the power {grows:.3f}: cheaper, which says nothing of quality",
        {
            "flops_a_byte_bytes": per_byte["bytes"], "flops_a_byte_patches": per_byte["patches"],
            "dense_flops_bytes": dense["bytes"], "dense_flops_patches": dense["patches"],
            "parameters_ratio": times, "power_of_pairs": grows, "power_of_patch_size": sizes.slope,
            "best_patch_size": best[-1][1],
        },
        (Control("patches of one byte (FLOPs a byte more)", one - per_byte["bytes"], 0.0),),
        (
            Curve("best patch size", x, tuple(float(least) for least, _ in best), **axes),
            Curve("bytes", x, tuple(float(length) ** 2 for length in lengths), **axes),
        ),
    )  # fmt: skip


def pairs(length: int, size: int) -> float:
    """Return the pairs of positions: of patches, and of bytes within each."""
    return (length / size) ** 2 + length * size
