"""The command `evaluate`: quality of a model on text, labelled examples, text pairs, or lm-eval tasks."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from archetype.apps.cli.fields import settings_of, takes, values_of, with_groups
from archetype.apps.cli.options import TEXT_HELP, Column, Json, Minutes, Model, Opening
from archetype.apps.cli.output import print_device, print_json, show_warnings
from archetype.settings.generation import Beam

if TYPE_CHECKING:
    from archetype.api.causal_lm import CausalLM
    from archetype.api.text_encoder import TextEncoder
    from archetype.evaluation import LikelihoodBound
    from archetype.evaluation.score import Score
    from archetype.table import Table

T = TypeVar("T")
DATA_HELP = (
    "Labelled texts (JSON lines or CSV), labelled words (JSON lines), images (.npz, or a folder with one per "
    "class), or translation pairs (JSON lines of source and target)."
)
RETRIEVAL_HELP = (
    "Retrieval data: pairs as for train --pairs (JSON lines, CSV or TSV), or a folder with corpus.jsonl, "
    "queries.jsonl and qrels."
)
BEAM = settings_of(Beam, "num_beams", "length_penalty")
NEEDS = {
    "stride": ("text", "files"),
    "length": ("text", "files"),
    "draws": ("text", "files"),
    "minutes": ("text", "files"),
    "num_fewshot": ("tasks",),
    "limit": ("tasks",),
    "column": ("text", "files"),
    "source": ("target",),
    "target": ("source",),
    "recall_at": ("retrieval",),
    **dict.fromkeys(BEAM, ("source", "data")),
}
SECTIONS = {  # of the options, in the help
    "Data": ("text", "data", "source", "target", "retrieval", "correlation", "tasks"),
    "Texts": ("column", "stride", "length", "draws", "minutes"),
    "Translations": tuple(BEAM),
    "Vectors": ("recall_at",),
    "Tasks": ("num_fewshot", "limit"),
}


@with_groups
@takes(BEAM)
def evaluate(
    model: Model,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE...", help="Text (see --text) if the model predicts tokens, else records (see --data)."
        ),
    ] = None,
    text: Annotated[list[Path] | None, typer.Option(help=f"{TEXT_HELP}; may be repeated.")] = None,
    column: Column = None,
    data: Annotated[Path | None, typer.Option("--data", "--labelled", "--images", help=DATA_HELP)] = None,
    source: Annotated[Path | None, typer.Option(help="File of source lines; needs --target.")] = None,
    target: Annotated[Path | None, typer.Option(help="File of reference translations, one line per source.")] = None,
    retrieval: Annotated[Path | None, typer.Option(help=RETRIEVAL_HELP)] = None,
    correlation: Annotated[
        Path | None, typer.Option(help="Scored text pairs, as for train --scored-pairs (JSON lines, CSV or TSV).")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(metavar="A,B", help="lm-eval tasks, task YAML files, or folders of them.")
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(help="Number of tokens from the start of one window to the next.  [default: half a window]"),
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="Number of tokens per window.  [default: the model's context]")
    ] = None,
    draws: Annotated[
        int | None,
        typer.Option(
            min=1, help="Random masks of each window, for a model that predicts masked tokens.  [default: 32]"
        ),
    ] = None,
    num_fewshot: Annotated[
        int | None, typer.Option(min=0, help="Number of few-shot examples.  [default: the task's own number]")
    ] = None,
    recall_at: Annotated[
        list[int] | None, typer.Option(min=1, help="k of recall@k; may be repeated.  [default: 1, 10 and 100]")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of questions per task.  [default: all]")
    ] = None,
    minutes: Minutes = None,
    *,
    opening: Opening,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Evaluate a model: loss, accuracy, BLEU and chrF, retrieval, correlation, or lm-eval tasks.

    Of a text, a model that predicts masked tokens has an upper bound of the loss.
    """
    show_warnings()
    from archetype.api.causal_lm import CausalLM
    from archetype.api.functions import evaluate as evaluate_model
    from archetype.api.functions import load
    from archetype.api.text_embedder import TextEmbedder
    from archetype.api.text_encoder import TextEncoder
    from archetype.apps.cli.progress import preparation_bar
    from archetype.data.text_files import read_texts
    from archetype.errors import SpecError
    from archetype.evaluation import RECALL_AT, LikelihoodBound
    from archetype.machine.time_budget import about_budget, in_time
    from archetype.table import Table

    if sum(bool(source_of_data) for source_of_data in (files, text, data, source, tasks, retrieval, correlation)) != 1:
        remedy = "pass FILE, --text, --data, --source with --target, --retrieval, --correlation, or --tasks"
        raise SpecError("evaluate", "accepts exactly one kind of data", remedy)
    beam = values_of(BEAM, options)
    Beam.parse(beam)  # invalid settings fail before a large model is loaded
    # a missing file fails before a large model is loaded, too; what FILE means only the model's kind tells
    documents = {str(file): read_texts(file, column) for file in text or ()}
    lm = load(model, **opening.settings)
    if files and (lm.spec.continues_text or lm.spec.fills_masks):
        text, documents = files, {str(file): read_texts(file, column) for file in files}
    elif files and column is not None:
        raise SpecError("--column", f"a model of kind {lm.spec.kind} reads no plain text files", "remove it")
    elif files:
        if len(files) > 1:
            raise SpecError(
                str(files[1]), f"a model of kind {lm.spec.kind} takes a single file", "remove this argument"
            )
        data = files[0]
        if about_budget():
            raise SpecError("--minutes", f"a model of kind {lm.spec.kind} reads all records", "remove it")

    def show(record: dict[str, Any], report: object) -> None:
        if as_json:
            print_json(record)
        else:
            print_device(lm.model.device)
            print(report)

    if tasks is not None:
        # what lm-eval prints goes to stderr: --json reserves standard output for one object
        with contextlib.redirect_stdout(sys.stderr):
            scores = lm.expect(CausalLM).evaluate_tasks(tasks.split(","), num_fewshot, limit)
        show(scores.record(), scores)
    elif documents and lm.spec.fills_masks:
        if stride is not None:
            raise SpecError("--stride", "windows of a model that predicts masked tokens do not overlap", "remove it")
        with preparation_bar("reading", "windows"):
            of_each = in_time(documents.items())
            bounds = {name: _bound(lm.expect(TextEncoder), name, one, length, draws) for name, one in of_each}
        table = Table(("text", *LikelihoodBound.COLUMNS), [[name, *each.cells] for name, each in bounds.items()])
        show({"texts": [{"file": name} | each.record() for name, each in bounds.items()]}, table)
    elif documents:
        if draws is not None:
            raise SpecError("--draws", f"a model of kind {lm.spec.kind} scores each token exactly", "remove it")
        with preparation_bar("reading", "windows"):
            records = {
                name: _score(lm.expect(CausalLM), name, one, stride, length).record()
                for name, one in in_time(documents.items())
            }
        show({"texts": [{"file": name} | record for name, record in records.items()]}, _table(records))
    else:
        report: Any  # with a record() and a table
        with preparation_bar("reading", "texts"):
            if retrieval is not None:
                report = lm.expect(TextEmbedder).evaluate_retrieval(retrieval, recall_at or RECALL_AT)
            elif correlation is not None:
                report = lm.expect(TextEmbedder).evaluate_similarity(correlation)
            else:
                pair = None if source is None or target is None else (source, target)
                report = evaluate_model(lm, data=pair or data or "", **beam)
        show(report.record(), report)


def _score(lm: "CausalLM", file: str, documents: list[str], stride: int | None, length: int | None) -> "Score":
    from archetype.evaluation.score import together

    return together(_of_each(file, documents, lambda text: lm.score(text, stride, length)))


def _bound(
    lm: "TextEncoder", file: str, documents: list[str], length: int | None, draws: int | None
) -> "LikelihoodBound":
    from archetype.evaluation.likelihood_bound import together

    options = {} if draws is None else {"draws": draws}
    return together(_of_each(file, documents, lambda text: lm.likelihood_bound(text, length, **options)))


def _of_each(file: str, documents: list[str], compute: Callable[[str], T]) -> list[T]:
    from archetype.errors import ArchetypeError
    from archetype.machine.time_budget import in_time

    results = []
    for index, text in enumerate(in_time(documents), start=1):
        try:
            # each text by itself: no window has tokens of two
            results.append(compute(text))
        except ArchetypeError as error:
            if error.place != "text":  # an invalid setting, the same for every text
                raise
            raise error.at(file if len(documents) == 1 else f"{file}: text {index}") from None
    return results


def _table(records: dict[str, dict[str, Any]]) -> "Table":
    from archetype.table import Table

    rows = [
        [
            name,
            f"{record['num_tokens']:,}",
            f"{record['loss']:.4f}",
            f"{record['perplexity']:.3f}",
            f"{record['bits_per_byte']:.4f}",
            f"{record['accuracy']:.1%}",
        ]
        for name, record in records.items()
    ]
    return Table(("text", "tokens", "loss per token", "perplexity", "bits per byte", "accuracy"), rows)
