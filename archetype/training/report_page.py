"""Report of a run as a self-contained HTML page: curves, cost, recipe, samples and environment."""

import html
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from archetype.chart import Chart
from archetype.data.skipping import sentence
from archetype.errors import DataError, one_line
from archetype.estimate.report import CostReport, cost_report
from archetype.io import atomic
from archetype.io.yaml import mapping_to_yaml
from archetype.runs.directory import Run, read_run_spec
from archetype.runs.peaks import Peak
from archetype.spec.serialize import to_yaml
from archetype.table import Table, quantity, size
from archetype.training import metrics
from archetype.training.plot import Curve, curves
from archetype.training.provenance import read_provenance
from archetype.training.recipe import Recipe, read_recipe
from archetype.training.report_sentences import sentences
from archetype.training.stages import lines_of_last_stage
from archetype.training.step_flops import step_flops
from archetype.training.verdict import verdict

MAX_POINTS = 400  # per curve
MAX_DOTS = 50  # points of a curve above which it has no dots
STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1b1f24; --soft: #626a73; --line: #d8dee4; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --ink: #e6e9ec; --soft: #9aa4ae; --line: #333a41; } }
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; max-width: 760px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin: 2rem 0 0.5rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: 0.2rem 0.6rem 0.2rem 0; overflow-wrap: anywhere; }
th { color: var(--soft); font-weight: 500; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 0.8rem; }
dt { color: var(--soft); font-size: 0.85rem; } dd { margin: 0; font-size: 1.15rem; }
pre { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; padding: 0.6rem; font-size: 0.85rem; }
svg { width: 100%; height: auto; }
"""


def write_report(run: Run) -> Path:
    """Write report.html into a run directory. The run may be finished, interrupted, or still training."""
    if not run.exists or not run.recipe_file.is_file():
        raise DataError(str(run.folder), "is not a trained run", "pass the folder that `archetype train` made")
    atomic.write_bytes(run.report_file, _page(run).encode())
    return run.report_file


def _page(run: Run) -> str:
    recipe, spec, lines = read_recipe(run.recipe_file), read_run_spec(run), metrics.read(run.metrics_file)
    steps = [line for line in lines if "loss" in line]
    name, provenance = html.escape(one_line(run.folder.resolve().name)), read_provenance(run)
    length = recipe.sequence_length if hasattr(spec, "vocab_size") else None
    cost = cost_report(spec, recipe.batch_size, length, recipe.dtype.replace("auto", "float32"))
    samples = [(f"{line['step']:,}", line["sample"]) for line in lines if "sample" in line]
    environment = provenance.environment if provenance else {}
    told = sentences(recipe, spec, cost.parameters["total"], lines)
    of_stage = lines_of_last_stage(recipe.stages, lines)
    guess = provenance.guessing_loss if provenance else None
    judged = verdict(of_stage, guess, recipe.optimizer.learning_rate, recipe.teacher is not None)
    if judged and run.weights_file.is_file():  # the run has finished
        told.append(f"This run {judged.text}.")
    told += [f"It was resumed with a change: {change}." for change in (provenance.changes if provenance else ())]
    if provenance and provenance.examples:
        told.append(f"The training data are {provenance.examples}.")
    if provenance and provenance.num_skipped:
        told.append(f"{sentence(provenance.num_skipped, provenance.skipped)}.")
    sections = [
        ("", "".join(f"<p>{html.escape(sentence)}</p>" for sentence in told)),
        ("", _summary(recipe, cost, steps, lines)),
        ("Loss", _loss_chart(lines)),
        ("Validation", _evaluations(lines)),
        ("Samples", _table(("step", "sample"), samples) if samples else ""),
        ("Learning rate", _chart("learning rate", {"scheduled": _series(steps, "learning_rate")})),
        ("Gradient norm", _chart("norm", {"before clipping": _series(steps, "gradient_norm")})),
        ("Predictions per second", _chart("predictions per second", {"measured": _series(steps, "per_second")})),
        ("Cost", _cost(cost)),
        ("Recipe", f"<pre>{html.escape(mapping_to_yaml(recipe.dump()))}</pre>"),
        ("Architecture", f"<pre>{html.escape(to_yaml(spec))}</pre>"),
        ("Environment", _table(("", ""), [(key, _in_words(value)) for key, value in environment.items()])),
    ]
    body = "".join(f"{f'<h2>{title}</h2>' if title else ''}{content}" for title, content in sections if content)
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><h1>{name}</h1>{body}</body></html>\n"
    )


def _summary(recipe: Recipe, cost: CostReport, steps: list[dict[str, Any]], lines: list[dict[str, Any]]) -> str:
    timed = [line for line in steps if line.get("num_targets") and line.get("per_second")]
    seconds = sum(line["num_targets"] / line["per_second"] for line in timed)
    figures = {
        "steps": f"{steps[-1]['step'] if steps else 0:,} of {recipe.steps:,}",
        "parameters": f"{cost.parameters['total']:,}",
        "predictions": f"{quantity(sum(line.get('num_targets', 0) for line in steps)).strip()}",
        "time in steps": f"{seconds / 60:.1f} min",
    }
    if evaluated := [line for line in lines if "validation_loss" in line]:
        figures["best validation loss"] = f"{min(line['validation_loss'] for line in evaluated):.4f}"
        if (bits := evaluated[-1].get("validation_bits_per_byte")) is not None:
            figures["last bits per byte"] = f"{bits:.4f}"
    measured = next((line for line in reversed(lines) if "peak_flops" in line), None)
    if measured and seconds and not cost.spec.reads_source:
        # MFU: FLOP/s of the steps over the measured peak of matrix products; sources of encoder-decoders differ in
        # length
        rate = step_flops(recipe, cost.spec, cost.batch, cost.length) * len(steps) / seconds
        peak = Peak(measured["peak_flops"], measured["peak_path"]).raised(rate)
        path = html.escape(peak.path)
        figures["MFU"] = f"{rate / peak.rate:.1%} of {peak.rate / 1e9:,.0f} GFLOP/s, measured by {path}"
    return f"<dl>{''.join(f'<div><dt>{key}</dt><dd>{value}</dd></div>' for key, value in figures.items())}</dl>"


def _loss_chart(lines: list[dict[str, Any]]) -> str:
    training, held_out, final = curves(lines)
    return _chart("loss", {"training": training, "validation": held_out, "whole validation set": final})


def _evaluations(lines: list[dict[str, Any]]) -> str:
    rows = [
        (
            f"{line['step']:,}",
            f"{line['validation_loss']:.4f}",
            f"{math.exp(min(line['validation_loss'], 700)):.2f}",
            "" if line.get("validation_accuracy") is None else f"{line['validation_accuracy']:.1%}",
            "" if line.get("validation_bits_per_byte") is None else f"{line['validation_bits_per_byte']:.4f}",
        )
        for line in lines
        if "validation_loss" in line
    ]
    return _table(("step", "loss", "perplexity", "accuracy", "bits per byte"), rows) if rows else ""


def _cost(report: CostReport) -> str:
    rows = [
        (row.module, f"{row.parameters:,}", f"{row.parameters / max(1, report.parameters['total']):.1%}")
        for row in sorted(report.rows, key=lambda row: -row.parameters)
        if row.parameters
    ]
    step = f"a step of {report.batch:,} rows{f' of {report.length:,} tokens' if report.length else ''}"
    summary = f"{step} takes {quantity(report.flops['train'])}FLOPs and {size(report.memory['training_peak'])}"
    return f"<p>By the cost model, {summary}.</p>{_table(('module', 'parameters', 'share'), rows)}"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rows = [list(map(str, row)) for row in rows]
    return Table(tuple(headings), rows, text_columns=2 if headings[-1] in ("", "sample") else 1).html() if rows else ""


def _in_words(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _series(steps: list[dict[str, Any]], field: str) -> Curve:
    steps = [line for line in steps if field in line]
    # thinned to what a picture can show
    steps = steps[:: max(1, len(steps) // MAX_POINTS)]
    return [line["step"] for line in steps], [line[field] for line in steps]


def _chart(y_name: str, curves: dict[str, Curve]) -> str:
    lines = {f"{label}: {ys[-1]:.4g}": (xs, ys) for label, (xs, ys) in curves.items() if ys}
    dots = {label: (xs, ys) for label, (xs, ys) in lines.items() if len(xs) <= MAX_DOTS}
    return Chart("step", y_name, lines, dots).svg()
