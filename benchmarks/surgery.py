"""Transplants of trained models: how each starts, what it costs, and what a short healing leaves of the difference.

    python -m benchmarks.surgery MODEL... --steps 100

Several models are the same donor, trained with other seeds: a cell is then the mean over them, with half of its 95 %
interval. Without --text, the text is sampled from the donor, so that no loss comes from text of another kind. Healing
trains on one part of it with the donor as the teacher, what is dropped is measured on that part as well, and everything
else is measured on the other part.
"""

import argparse
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import archetype
from archetype.api.causal_lm import CausalLM
from archetype.api.transplanting import LONGEST, save
from archetype.studies.statistics import paired_interval
from archetype.surgery.proof import compare
from archetype.surgery.report import Report
from archetype.tokenizers import train_tokenizer
from benchmarks.machine import heading
from benchmarks.transplants import Change, changes

COLUMNS = (
    "change", "source", "test", "start", "difference", "KL", "KL healed", "loss", "loss at the start", "loss healed",
    "parameters", "FLOPs", "state bytes",
)  # fmt: skip
DONOR_STEPS = 20  # of a donor whose copies are to differ, without healing
ROWS = 32  # of held-out text, compared at most
Cell = str | float


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps of healing; 0 for none")
    parser.add_argument("--texts", type=int, default=96, help="texts sampled from the donor")
    parser.add_argument("--text", type=Path, help="text instead, of which the last tenth is not trained on")
    parser.add_argument("--only", nargs="+", default=[""], help="changes whose name contains one of these")
    chosen = parser.parse_args()
    words = f"--text {chosen.text}" if chosen.text else f"--texts {chosen.texts}"
    print(heading(f"python -m benchmarks.surgery {' '.join(chosen.models)} --steps {chosen.steps} {words}"))
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    models = [archetype.CausalLM.load(model) for model in chosen.models]
    with tempfile.TemporaryDirectory() as temporary:
        folders = [Path(temporary) / str(seed) for seed in range(len(models))]
        tables = [
            Table(model, chosen.text, chosen.texts, chosen.steps, folder, seed)
            for seed, (model, folder) in enumerate(zip(models, folders, strict=True))
        ]
        for number, change in enumerate(changes(models[0].spec)):
            if any(words in change.name for words in chosen.only):
                rows = [table.row(change, folder / str(number)) for table, folder in zip(tables, folders, strict=True)]
                cells = [_cell(values) for values in zip(*rows, strict=True)]
                print(f"| {' | '.join((change.name, change.source, change.test, *cells))} |", flush=True)


class Table:
    """Rows of the table: each change of a model, or of a donor that was made of it.

    Args:
        text: file of text; None to sample it.
        count: texts sampled from the model, of which an eighth is not trained on.
        steps: of healing.
        folder: where files are written.
        seed: of healing and of new weights.
    """

    def __init__(self, model: CausalLM, text: Path | None, count: int, steps: int, folder: Path, seed: int) -> None:
        self.model, self.steps, self.folder, self.seed = model, steps, folder, seed
        if text is None:
            # one seed each: texts of one call have the same seed, and equal prompts would continue alike
            texts = [model.generate("", max_new_tokens=240, temperature=1.0, seed=seed) for seed in range(count)]
            self.train, self.held_out = "\n\n".join(texts[count // 8 :]), "\n\n".join(texts[: count // 8])
        else:
            whole = text.read_text(encoding="utf-8")
            self.train, self.held_out = whole[: len(whole) * 9 // 10], whole[len(whole) * 9 // 10 :]
        folder.mkdir()
        self.file = folder / "text.txt"
        self.file.write_text(self.train, encoding="utf-8")
        self.donors: dict[str, CausalLM] = {}

    def donor(self, change: Change) -> CausalLM:
        """Return the donor of a change, which is made once."""
        name = f"{change.donor} {change.trains_donor}"
        if name not in self.donors:
            lm = self.model
            for assignments in change.donor:
                lm = archetype.transplant(lm, assignments, text=self.train).model.expect(CausalLM)
            folder = self.folder / f"donor-{len(self.donors)}"
            lm.save(folder)
            self.donors[name] = (
                self.trained(folder, None, folder.with_suffix(".trained")) if change.trains_donor else lm
            )
        return self.donors[name]

    def trained(self, start: Path, teacher: Path | None, folder: Path) -> CausalLM:
        return archetype.train(
            folder, self.file, start_from=start, teacher=teacher, steps=self.steps or DONOR_STEPS, batch_size=8,
            sequence_length=min(256, self.model.spec.context_length), seed=self.seed,
        ).expect(CausalLM)  # fmt: skip

    def row(self, change: Change, folder: Path) -> tuple[Cell, ...]:
        """Return the cells of a change: its start, and after healing."""
        donor = self.donor(change)
        donor.save(folder / "donor")
        tokenizer = train_tokenizer("byte_bpe", [self.train], 480) if change.exchanges else None
        done = archetype.transplant(
            donor, change.assignments, text=self.train, tokenizer=tokenizer, seed=self.seed, **change.options
        )
        save(done, folder / "start", str(folder / "donor"))
        is_healed = self.steps > 0 and not change.is_equal
        healed = None
        if is_healed:
            teacher = None if change.exchanges else folder / "donor"
            healed = self.trained(folder / "start", teacher, folder / "healed")
        start = done.model.expect(CausalLM)
        cells = (self._of_tokens if change.exchanges else self._distance)(donor, start, healed, done.report)
        return (*cells, *_costs(done.report))

    def _distance(self, donor: CausalLM, start: CausalLM, healed: CausalLM | None, report: Report) -> tuple[Cell, ...]:
        rows = self._rows(donor, start)
        proof = compare(donor.model, start.model, rows, report.layers)
        after = None if healed is None else compare(donor.model, healed.model, rows, report.layers)
        return (
            proof.start.words, proof.difference, proof.divergence, "" if after is None else after.divergence,
            proof.loss_before, proof.loss_after, "" if after is None else after.loss_after,
        )  # fmt: skip

    def _rows(self, *models: CausalLM) -> Sequence[Tensor]:
        length = min(LONGEST, *(lm.spec.context_length for lm in models))
        assert models[0].tokenizer is not None
        ids = torch.tensor(models[0].tokenizer.encode(self.held_out)[: ROWS * length])
        return [row[None] for row in ids.split(length) if len(row) > 1]

    def _of_tokens(self, donor: CausalLM, start: CausalLM, healed: CausalLM | None, report: Report) -> tuple[Cell, ...]:
        # losses of another vocabulary are comparable by byte
        losses = [lm and lm.score(self.held_out).bits_per_byte * math.log(2) for lm in (donor, start, healed)]
        return "by byte", "", "", "", *("" if loss is None else loss for loss in losses)


def _costs(report: Report) -> tuple[Cell, ...]:
    # of the new model, relative to the donor's
    of = {name.split()[0]: after / before for name, (before, after) in report.costs.items()}
    return tuple(f"{of[name]:.2f} x" for name in ("parameters", "FLOPs", "state"))


def _cell(values: Sequence[Cell]) -> str:
    numbers = [value for value in values if isinstance(value, float)]
    if len(numbers) < len(values):
        return str(values[0])
    mean, low, _ = paired_interval(numbers)
    return f"{mean:.4g}" if math.isinf(low) else f"{mean:.4g} ± {mean - low:.2g}"


if __name__ == "__main__":
    main()
