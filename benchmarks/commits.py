"""Compare another checkout with this one: each job runs in processes of its own, of both checkouts in turns.

    git worktree add --detach ../before COMMIT
    python -m benchmarks.commits ../before --rounds 3

A job's time is the least of its repetitions; the table has the least and the ratio of medians over the rounds.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parents[1]
SIZES = {
    "small": "context_length=1024, vocab_size=1024, d_model=128, d_ff=256, num_layers=8, num_heads=4, tied=True",
    "110M": "context_length=1024, vocab_size=32000, d_model=768, d_ff=2048, num_layers=12, num_heads=12, "
    "num_kv_heads=4, tied=True",
}
STEPS = {
    "decode 1": "DecodeStep(model, filled(1)), torch.zeros(1, 1, dtype=torch.long)",
    "decode 16": "DecodeStep(model, filled(16)), torch.zeros(16, 1, dtype=torch.long)",
    "forward": "model, torch.randint(0, 1000, (4, 128))",
    "training": "train, torch.randint(0, 1000, (4, 129))",
}
VERBS = {"--help": ["--help"], "cost": ["cost", "llama-2-7b"]}
PROGRAM = """
import time, torch, archetype
from archetype.families.llama import llama
from archetype.generate.step import DecodeStep
from torch.nn.functional import cross_entropy
torch.set_num_threads(2)
model = archetype.build(llama(SIZE)).eval()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
def filled(rows):
    state = model.new_state(rows, 512)
    state.lengths += 100
    return state
def train(x):
    optimizer.zero_grad()
    cross_entropy(model.train()(x[:, :-1]).logits.flatten(0, 1), x[:, 1:].flatten()).backward()
    optimizer.step()
step, x = STEP
times = []
with torch.set_grad_enabled(step is train):
    for _ in range(25):
        started = time.perf_counter()
        step(x)
        times.append(time.perf_counter() - started)
print(min(times[3:]))
"""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="jobs whose name contains this")
    chosen = parser.parse_args()
    checkouts = (chosen.before.resolve(), HERE)
    for job in [f"{step}, {size}" for size in SIZES for step in STEPS] + list(VERBS):
        if chosen.only not in job:
            continue
        times: dict[Path, list[float]] = {checkout: [] for checkout in checkouts}
        for number in range(chosen.rounds):
            for checkout in checkouts[:: -1 if number % 2 else 1]:
                times[checkout].append(seconds(job, checkout))
        (before, after), medians = map(min, times.values()), [*map(statistics.median, times.values())]
        print(
            f"{job:<18}{1e3 * before:9.3f} {1e3 * after:9.3f} ms  {after / before:5.2f}  {medians[1] / medians[0]:5.2f}"
        )


def seconds(job: str, checkout: Path) -> float:
    """Time a job with the code of a checkout."""
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    if job in VERBS:
        started = time.perf_counter()
        command = [sys.executable, "-m", "archetype", *VERBS[job]]
        subprocess.run(command, env=environment, cwd=checkout, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - started
    step, size = job.split(", ")
    program = PROGRAM.replace("SIZE", SIZES[size]).replace("STEP", STEPS[step])
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=checkout, check=True, capture_output=True, text=True
    )
    return float(done.stdout)


if __name__ == "__main__":
    main()
