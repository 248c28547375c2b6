"""`archetype translate --input FILE --output FILE`: one source per input line and one target per output line."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archetype.api.seq2seq_lm import Seq2SeqLM
from archetype.apps.cli.made_with import REMEDY, MadeWith, difference, made_with, model_hash
from archetype.apps.cli.output import print_device
from archetype.apps.cli.record_file import Line, append_records, finished_records, read_records_with_ids
from archetype.data.text_files import read_lines_text
from archetype.errors import DataError
from archetype.io.atomic import write_bytes, write_json
from archetype.io.files import read_json
from archetype.io.text import read_text
from archetype.machine.time_budget import in_time

JSON_LINES = (".jsonl", ".ndjson")  # suffixes of JSON lines; other files have one text per line
LINES_AT_ONCE = 256  # translated together; at most these are lost if the process is killed


@dataclass
class Source(Line):
    text: str


def read_sources(file: Path) -> list[Source]:
    """Read the sources from JSON lines, or from a file with one text per line.

    Raises:
        DataError: a line is invalid. The message names the first such line.
    """
    if file.suffix in JSON_LINES:
        return read_records_with_ids(file, _source, '{"source": "Hello."}')
    remedy = "write JSON lines (.jsonl), or a text file with one source per line"
    text = read_lines_text(file, remedy).replace("\r\n", "\n").removesuffix("\n")
    return [Source(f"{file}: line {n}", n, line) for n, line in enumerate(text.split("\n"), start=1)]


def _source(data: dict[str, Any], id: int | str, location: str) -> Source:
    if unknown := sorted(data.keys() - {"id", "source", "target"}):
        raise DataError(f"{location}: {unknown[0]:.40}", "is not a known key", "use source, and optionally id")
    if not isinstance(text := data.get("source"), str):
        raise DataError(f"{location}: source", f"{text!r:.80} is not a string", "write it as a JSON string")
    return Source(location, id, text)


def translate_file(
    lm: Seq2SeqLM, sources: list[Source], output: Path, settings: dict[str, Any]
) -> dict[str, int | float]:
    """Translate the sources that have no target in the output yet, in batches of similar lengths.

    A JSON lines output gets each record as soon as it is ready. A text output, with one target per line, is written
    when all targets are ready, from a JSON lines file next to it. A hidden file records model and settings.

    Args:
        lm: an encoder-decoder.
        output: file to append to.
        settings: fields of `Beam`.

    Returns:
        Number of earlier and of new targets, and targets per second.

    Raises:
        ArchetypeError: a source is too long, or a file cannot be used. Nothing is translated in this case.
    """
    lm.translate([])  # refuses a model without a tokenizer
    model, beam = model_hash(lm), lm.beam(**settings).dump(full=True)

    def of(source: Source) -> MadeWith:
        return made_with(model, source.text, beam)

    made_with_file = output.with_name(f".{output.name}.made_with.json")
    hashes = made_with(model, [source.text for source in sources], beam)
    records = output if output.suffix in JSON_LINES else output.with_name(f"{output.name}.partial.jsonl")
    # a text output without a partial file is complete: nothing is left but to check that it is of this input
    if records != output and output.exists() and not records.exists():
        if read_text(output).count("\n") != len(sources):
            raise DataError(str(output), "does not contain translations of this input", REMEDY)
        # lines of text have no place for the hashes, so they are in the hidden file
        if (cause := difference(read_json(made_with_file) if made_with_file.is_file() else None, hashes)) is not None:
            raise DataError(str(output), cause, REMEDY)
        return {"before": len(sources), "finished": 0, "targets_per_second": 0.0}
    started, num_done = time.perf_counter(), 0

    def compute(left: list[Source]) -> Iterator[dict[str, Any]]:
        nonlocal num_done
        lengths = {source.id: _length(lm, source) for source in left}
        # longest first: batches of similar lengths have little padding, and if memory is short the first one fails
        left.sort(key=lambda source: -lengths[source.id])
        print_device(lm.model.device)
        for first in in_time(range(0, len(left), LINES_AT_ONCE)):
            batch = left[first : first + LINES_AT_ONCE]
            targets = lm.translate([source.text for source in batch], **settings)
            num_done += len(batch)
            for source, target in zip(batch, targets, strict=True):
                yield {"id": source.id, "source": source.text, "target": target}

    def speed() -> float:
        return num_done / (time.perf_counter() - started)

    before, finished, _ = append_records(sources, records, "target", of, compute, lambda: f"{speed():,.1f} lines/s")
    # without a target for each source, the records stay, and the next command continues them
    if records != output and before + finished == len(sources):
        targets = finished_records(records, sources, "target", of)
        # in the order of the input; one line for each target, whatever it has
        lines = [" ".join(targets[source.id]["target"].splitlines()) for source in sources]
        # the partial file is removed last: if the process is killed before, the next one starts from it
        write_json(made_with_file, hashes)
        write_bytes(output, "".join(f"{line}\n" for line in lines).encode())
        records.unlink(missing_ok=True)
    return {"before": before, "finished": finished, "targets_per_second": round(speed(), 1)}


def _length(lm: Seq2SeqLM, source: Source) -> int:
    assert lm.tokenizer is not None
    length = len(lm.tokenizer.encode(source.text)) + 1  # and the end of the text
    if length > lm.spec.context_length:
        cause = f"has {length} tokens, more than the model's context of {lm.spec.context_length}"
        raise DataError(source.place, cause, "split it into sentences")
    return length
