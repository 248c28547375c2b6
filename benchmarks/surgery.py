"""Transplants of a trained model: how each starts, what it costs, and what a short healing leaves of the difference.

    python -m benchmarks.surgery MODEL --steps 100

The text is sampled from the donor, so that no loss comes from text of another kind. Healing trains on one part
of it with the donor as the teacher, and everything is measured on the other part.
"""

import argparse
import math
import tempfile
from pathlib import Path

import archetype
from archetype.api.causal_lm import CausalLM
from archetype.api.transplanting import rows_of, save
from archetype.surgery.proof import compare
from archetype.surgery.report import Report
from archetype.tokenizers import train_tokenizer
from benchmarks.machine import heading
from benchmarks.transplants import Change, changes

COLUMNS = (
    "change", "source", "test", "start", "difference", "KL", "KL healed", "loss", "loss at the start", "loss healed",
    "parameters", "FLOPs", "state bytes",
)  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps of healing; 0 for none")
    parser.add_argument("--texts", type=int, default=96, help="texts sampled from the donor")
    parser.add_argument("--only", help="changes whose name contains this")
    chosen = parser.parse_args()
    model = archetype.CausalLM.load(chosen.model)
    print(heading(f"python -m benchmarks.surgery {chosen.model} --steps {chosen.steps} --texts {chosen.texts}"))
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    with tempfile.TemporaryDirectory() as temporary:
        table = Table(model, chosen.texts, chosen.steps, Path(temporary))
        for number, change in enumerate(changes(model.spec)):
            if chosen.only is None or chosen.only in change.name:
                print(f"| {' | '.join(table.row(change, Path(temporary) / str(number)))} |", flush=True)


class Table:
    """Rows of the table: each change of a model, or of a donor that was made of it.

    Args:
        count: texts sampled from the model, of which an eighth is not trained on.
        steps: of healing.
        folder: where files are written.
    """

    def __init__(self, model: CausalLM, count: int, steps: int, folder: Path) -> None:
        self.model, self.steps, self.folder = model, steps, folder
        # one seed each: texts of one call have the same seed, and equal prompts would continue alike
        texts = [model.generate("", max_new_tokens=240, temperature=1.0, seed=seed) for seed in range(count)]
        self.held_out, self.train = "\n\n".join(texts[: count // 8]), folder / "text.txt"
        self.train.write_text("\n\n".join(texts[count // 8 :]), encoding="utf-8")
        self.donors: dict[str, CausalLM] = {}

    def donor(self, change: Change) -> CausalLM:
        """Return the donor of a change, which is made once."""
        name = f"{change.donor} {change.trains_donor}"
        if name not in self.donors:
            lm = self.model
            for assignments in change.donor:
                lm = archetype.transplant(lm, assignments, text=self.held_out).model.expect(CausalLM)
            folder = self.folder / f"donor-{len(self.donors)}"
            lm.save(folder)
            self.donors[name] = (
                self.trained(folder, None, folder.with_suffix(".trained")) if change.trains_donor else lm
            )
        return self.donors[name]

    def trained(self, start: Path, teacher: Path | None, folder: Path) -> CausalLM:
        return archetype.train(
            folder, self.train, start_from=start, teacher=teacher, steps=self.steps, batch_size=8, sequence_length=256
        ).expect(CausalLM)

    def row(self, change: Change, folder: Path) -> tuple[str, ...]:
        """Return the cells of a change: its start, and after healing."""
        donor = self.donor(change)
        donor.save(folder / "donor")
        tokenizer = train_tokenizer("byte_bpe", [self.train.read_text()], 480) if change.exchanges else None
        done = archetype.transplant(
            donor, change.assignments, text=self.held_out, tokenizer=tokenizer, **change.options
        )
        save(done, folder / "start", "the donor")
        is_healed = self.steps > 0 and not change.is_equal
        healed = None
        if is_healed:
            teacher = None if change.exchanges else folder / "donor"
            healed = self.trained(folder / "start", teacher, folder / "healed")
        cells = self._of_tokens(done.report, healed) if change.exchanges else self._distance(donor, done.report, healed)
        return (change.name, change.source, change.test, *cells, *_costs(done.report))

    def _distance(self, donor: CausalLM, report: Report, healed: CausalLM | None) -> tuple[str, ...]:
        proof, after, loss = report.proof, "", ""
        assert proof is not None
        if healed is not None:
            rows = rows_of(donor, healed.spec, self.held_out)
            again = compare(donor.model, healed.model, rows, report.layers)
            after, loss = f"{again.divergence:.2g}", f"{again.loss_after:.4f}"
        return (
            proof.start.words, f"{proof.difference:.1e}", f"{proof.divergence:.2g}", after, f"{proof.loss_before:.4f}",
            f"{proof.loss_after:.4f}", loss,
        )  # fmt: skip

    def _of_tokens(self, report: Report, healed: CausalLM | None) -> tuple[str, ...]:
        # losses of another vocabulary are comparable by byte
        exchange = report.exchange
        assert exchange is not None
        after = "" if healed is None else f"{healed.score(self.held_out).bits_per_byte * math.log(2):.4f} a byte"
        return "", "", "", "", f"{exchange.before:.4f} a byte", f"{exchange.after:.4f} a byte", after


def _costs(report: Report) -> tuple[str, ...]:
    # of the new model, relative to the donor's
    of = {name.split()[0]: after / before for name, (before, after) in report.costs.items()}
    return tuple(f"{of[name]:.2f} x" for name in ("parameters", "FLOPs", "state"))


if __name__ == "__main__":
    main()
