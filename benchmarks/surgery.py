"""Transplants of a trained model: how each one starts, and what is left of the difference after a short healing.

    python -m benchmarks.surgery MODEL --steps 300

The text is sampled from the donor, so that no loss comes from text of another kind. Healing trains on one part
of it, and the losses are those of the other part. The donor itself is trained in the same way, as a control.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import archetype
from archetype.api.causal_lm import CausalLM
from archetype.api.transplanting import save
from archetype.models.spec import ModelSpec
from archetype.parts.attention.spec import Attention
from archetype.parts.feedforward.spec import GatedMLP
from benchmarks.machine import heading


@dataclass(frozen=True)
class Change:
    """A transplant: its assignments, and where it is described."""

    name: str
    assignments: Sequence[str]
    source: str = ""
    options: dict[str, Any] = field(default_factory=dict)


def changes(spec: ModelSpec) -> list[Change]:
    """Return the transplants of a Llama of this size."""
    layers, block = len(spec.stacks[0].layers), spec.stacks[0].layers[0]
    mixer, feedforward = cast(Attention, block.mixer), cast(GatedMLP, block.feedforward)
    heads, kv_heads = mixer.num_heads, mixer.num_kv_heads or mixer.num_heads
    width = feedforward.width(spec.stacks[0].d_model)
    context = spec.context_length
    delta = f"{{kind: gated_delta_net, num_heads: {heads}, head_dim: {spec.stacks[0].d_model // heads}}}"
    experts = (
        "{kind: experts, num_experts: 4, experts_per_token: 2, router: {kind: softmax, renormalize: true}, "
        f"expert: {{kind: gated, d_ff: {width}, activation: silu}}}}"
    )
    all_but_last = f"layers[0:{layers - 1}].mixer"
    return [
        Change("nothing", ["name=same"]),
        Change("each key head twice", [f"layers[*].mixer.num_kv_heads={2 * kv_heads}"]),
        Change("half of the key heads, their mean", [f"layers[*].mixer.num_kv_heads={kv_heads // 2}"], "Ainslie 2023"),
        Change(
            "half of the key heads, the first",
            [f"layers[*].mixer.num_kv_heads={kv_heads // 2}"],
            "Ainslie 2023",
            {"choices": {"heads": "first"}},
        ),
        Change(
            "half of the key heads, drawn anew",
            [f"layers[*].mixer.num_kv_heads={kv_heads // 2}"],
            "Ainslie 2023",
            {"choices": {"heads": "random"}},
        ),
        Change("d_ff doubled", [f"layers[*].feedforward.d_ff={2 * width}"], "Chen 2016"),
        Change("twice as many layers", [f"num_layers={2 * layers}"], "Wu 2024"),
        Change("experts from the feed-forward part", [f"layers[*].feedforward={experts}"], "Komatsuzaki 2023"),
        Change("a window of the whole context", [f"layers[*].mixer.pattern={{kind: window, size: {context}}}"]),
        Change("a window of 32 in all layers but the last", [f"{all_but_last}.pattern={{kind: window, size: 32}}"]),
        *(
            Change(f"one layer less, by {way}", [f"num_layers={layers - 1}"], "Men 2024", {"layers": way})
            for way in ("influence", "first", "random")
        ),
        *(
            Change(
                f"half of d_ff, by {way}",
                [f"layers[*].feedforward.d_ff={width // 2}"],
                "Muralidharan 2024",
                {"choices": {"cut": way}},
            )
            for way in ("activation", "magnitude", "random")
        ),
        Change("gated delta nets in every second layer", [f"layers[1::2].mixer={delta}"], "Wang 2024"),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps of healing")
    parser.add_argument("--texts", type=int, default=256, help="texts sampled from the donor")
    parser.add_argument("--only", help="changes whose name contains this")
    chosen = parser.parse_args()
    donor = archetype.CausalLM.load(chosen.model)
    print(heading(f"python -m benchmarks.surgery {chosen.model} --steps {chosen.steps} --texts {chosen.texts}"))
    columns = ("change", "source", "start", "KL", "loss at the start", "loss healed", "state bytes")
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    with tempfile.TemporaryDirectory() as temporary:
        train, held_out = sampled(donor, chosen.texts, Path(temporary))
        for number, change in enumerate(changes(donor.spec)):
            if chosen.only is None or chosen.only in change.name:
                print(measured(donor, change, train, held_out, Path(temporary) / str(number), chosen.steps), flush=True)


def sampled(donor: CausalLM, count: int, folder: Path) -> tuple[Path, str]:
    """Write texts that the donor generates; return the file, and an eighth of the texts that is not in it."""
    # one seed each: texts of one call have the same seed, and equal prompts would continue alike
    texts = [donor.generate("", max_new_tokens=240, temperature=1.0, seed=seed) for seed in range(count)]
    file = folder / "text.txt"
    file.write_text("\n\n".join(texts[count // 8 :]), encoding="utf-8")
    return file, "\n\n".join(texts[: count // 8])


def measured(donor: CausalLM, change: Change, train: Path, held_out: str, folder: Path, steps: int) -> str:
    """One row: the start of a transplant, and its loss after healing."""
    done = archetype.transplant(donor, change.assignments, text=held_out, **change.options)
    save(done, folder / "start", "the donor")
    proof = done.report.proof
    assert proof is not None
    healed = archetype.train(
        folder / "healed", train, start_from=folder / "start", steps=steps, batch_size=8, sequence_length=256
    )
    losses = [lm.expect(CausalLM).score(held_out).loss for lm in (done.model, healed)]
    (before, after) = next(values for name, values in done.report.costs.items() if name.startswith("state"))
    cells = (
        change.name, change.source, proof.start.words, f"{proof.divergence:.2g}", f"{losses[0]:.4f}",
        f"{losses[1]:.4f}", f"{before:,} -> {after:,}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
