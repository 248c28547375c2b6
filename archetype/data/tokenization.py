"""Tokenize documents with parallel processes into a cache on disk that all runs share.

Run as a program, this module is a worker that reads indices of pieces from stdin and writes JSON lines to stdout.
"""

import hashlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from archetype.data.corpus import encode
from archetype.data.shards import MANIFEST, BadRecord, Manifest, ShardRecord, ShardWriter, TokenizedDocuments
from archetype.data.skipping import skip, skipping, skipping_limit
from archetype.data.sources import Part, Sources
from archetype.errors import ArchetypeError, DataError
from archetype.io import atomic
from archetype.io.cache import cache_folder as usual_folder
from archetype.io.files import MAX_TEXT_BYTES, read_json
from archetype.io.lock import locked
from archetype.machine.cpu_info import num_cores
from archetype.tokenizers import Tokenizer, open_tokenizer

VERSION = 1  # version of the shard format and of the division of sources into pieces
JOB = "job.json"
LEAST_BYTES = 2**22  # with less text to tokenize, no worker processes are started
REPORT = 2**20  # characters between progress reports
CHUNK = 2**16  # characters per call of the tokenizer, which needs a few hundred bytes of memory per token
Progress = Callable[[int, int], None]  # called with bytes tokenized and bytes in total, both approximate
Done = tuple[list[ShardRecord], list[BadRecord]]  # result of a piece
_progress: ContextVar[Progress | None] = ContextVar("progress", default=None)


@contextmanager
def reporting(progress: Progress) -> Iterator[None]:
    """Report tokenization progress within the `with` block. Any thread may call `progress`."""
    token = _progress.set(progress)
    try:
        yield
    finally:
        _progress.reset(token)


def cache_folder(folder: str | None = None) -> Path:
    """Return the cache folder: `folder` if given, otherwise ARCHETYPE_CACHE or the user's cache folder."""
    if folder or (folder := os.environ.get("ARCHETYPE_CACHE")):
        return Path(folder).expanduser().absolute()
    return usual_folder()


def tokenized(sources: Sources, tokenizer: Tokenizer, cache: Path, workers: int | None = None) -> TokenizedDocuments:
    """Tokenize all documents, or load their tokens from the cache.

    By default, one process per core tokenizes if there is enough text, otherwise only this process.

    Raises:
        DataError: a source cannot be read, contains no text or a text that cannot be encoded, or a shard is damaged.
        CheckpointError: the cache cannot be written to.
    """
    files, digest = tokenizer_files(tokenizer)
    stamps = sources.stamps()
    # everything that determines the tokens names the folder
    fields = {"version": VERSION, "stamps": stamps, "field": sources.field, "separator": sources.separator}
    fields |= {"tokenizer": digest, "dtype": "<u2" if tokenizer.vocab_size <= 2**16 else "<u4"}
    key = hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:16]
    folder = cache / "tokens" / key
    if _is_whole(folder):
        return _without_bad(TokenizedDocuments(folder))
    atomic.make_folder(folder)
    # several runs may share the cache: one tokenizes, the others wait
    with locked(folder, doing="tokenizing these data", wait=True):
        if not _is_whole(folder):  # another process may have done it meanwhile
            (folder / MANIFEST).unlink(missing_ok=True)
            atomic.remove_unfinished(folder)
            pieces = sources.pieces()
            atomic.make_folder(folder / "tokenizer")
            for name, contents in files.items():
                atomic.write_bytes(folder / "tokenizer" / name, contents)
            read = {"names": sources.names, "field": sources.field, "separator": sources.separator}
            job = {"sources": read, "dtype": fields["dtype"], "pieces": pieces, "skip_bad": skipping_limit()}
            atomic.write_json(folder / JOB, job)
            done = _tokenize(folder, sources, pieces, tokenizer, str(fields["dtype"]), workers)
            shards = [shard for shards, _ in done for shard in shards]
            if not shards:
                raise DataError(", ".join(sources.names), "contains no text", "choose sources with text")
            # the folder's name has the stamps of the sources as they were
            if sources.stamps() != stamps:
                raise DataError(", ".join(sources.names), "changed while it was read", "start again")
            versions = {name: version(name) for name in ("numpy", "tokenizers")}
            bad = [record for _, records in done for record in records]
            # written last: a folder with a manifest is complete. Pieces that an interrupted process finished are
            # reused.
            manifest = Manifest(**fields, shards=shards, versions=versions, bad=bad)
            atomic.write_json(folder / MANIFEST, manifest.model_dump())
    return _without_bad(TokenizedDocuments(folder))


def _without_bad(documents: TokenizedDocuments) -> TokenizedDocuments:
    # records skipped during tokenization count against the current limit
    for place, cause, remedy, num_records in documents.manifest.bad:
        skip(DataError(place, cause, remedy), num_records)
    return documents


def tokenizer_files(tokenizer: Tokenizer) -> tuple[dict[str, bytes], str]:
    """Return the files of a saved tokenizer as {name: bytes}, and a hash of everything that determines its tokens."""
    with atomic.scratch_folder() as temporary:
        tokenizer.save(temporary)
        files = {file.name: file.read_bytes() for file in sorted(temporary.iterdir())}
    digest = hashlib.sha256(json.dumps([tokenizer.kind, tokenizer.bos, tokenizer.eos, tokenizer.adds_bos]).encode())
    for name, contents in files.items():
        digest.update(name.encode() + hashlib.sha256(contents).digest())
    return files, digest.hexdigest()


def _is_whole(folder: Path) -> bool:
    if not (folder / MANIFEST).exists():
        return False
    return all(_files_exist(folder, shard.record) for shard in TokenizedDocuments(folder, check=False).shards)


def _files_exist(folder: Path, record: ShardRecord) -> bool:
    return all((folder / f"{record.name}.{kind}").is_file() for kind in record.sha256)


def _tokenize(
    folder: Path,
    sources: Sources,
    pieces: list[list[Part]],
    tokenizer: Tokenizer,
    dtype: str,
    workers: int | None,
) -> list[Done]:
    sizes = [sum(part.num_bytes for part in piece) for piece in pieces]
    records = [_finished(folder, index) for index in range(len(pieces))]
    open_pieces = [index for index, shards in enumerate(records) if shards is None]
    done = sum(size for size, shards in zip(sizes, records, strict=True) if shards is not None)
    lock, progress = threading.Lock(), _progress.get()

    def report(size: int) -> None:
        nonlocal done
        with lock:
            done += size
            if progress is not None:
                progress(min(done, sum(sizes)), sum(sizes))

    if workers is None:
        is_much = sum(sizes[index] for index in open_pieces) >= LEAST_BYTES
        workers = min(num_cores(), len(open_pieces)) if is_much else 1
    is_ours = type(tokenizer).__module__.startswith("archetype.")  # workers do not know kinds from user code
    if workers > 1 and is_ours:
        for index, shards in zip(open_pieces, _in_processes(folder, open_pieces, workers, report), strict=True):
            records[index] = shards
    else:
        for index in open_pieces:
            records[index] = tokenize_piece(folder, sources, pieces[index], index, tokenizer, dtype, report)
    return [done for done in records if done is not None]


def _finished(folder: Path, index: int) -> Done | None:
    file = folder / f"{index:05}.json"
    if not file.exists():
        return None
    done = _done(read_json(file))
    return done if all(_files_exist(folder, shard) for shard in done[0]) else None


def _done(result: dict[str, Any]) -> Done:
    shards = [ShardRecord.model_validate(shard) for shard in result["shards"]]
    return shards, [BadRecord(*bad) for bad in result.get("bad", ())]


def tokenize_piece(
    folder: Path,
    sources: Sources,
    piece: list[Part],
    index: int,
    tokenizer: Tokenizer,
    dtype: str,
    report: Callable[[int], None],
) -> Done:
    """Tokenize a piece: write its shards, then the file that marks it as finished.

    `report` is called with the number of characters tokenized since the last call.
    """
    writer, size = ShardWriter(folder, f"{index:05}", dtype), 0
    # a document starts with bos if prompts do, and ends with the first eos
    before = [tokenizer.bos] if tokenizer.adds_bos and tokenizer.bos is not None else []
    with skipping(skipping_limit()) as skipped:
        for text in sources.documents(piece):
            ids = encode(tokenizer, text, CHUNK)
            writer.add(text, np.concatenate((before, ids, tokenizer.eos[:1])).astype(np.int32))
            size += len(text)
            if size >= REPORT:
                report(size)
                size = 0
    report(size)
    writer.flush()
    bad = [BadRecord(place, error.cause, error.remedy, count) for place, (error, count) in skipped.records.items()]
    shards = [shard.model_dump() for shard in writer.records]
    atomic.write_json(folder / f"{index:05}.json", {"shards": shards, "bad": bad})
    return writer.records, bad


def _in_processes(folder: Path, indices: list[int], workers: int, report: Callable[[int], None]) -> list[Done]:
    idle: queue.SimpleQueue[subprocess.Popen[str]] = queue.SimpleQueue()

    def shards_of(index: int) -> Done:
        # each piece goes to the next idle process; `map` returns results in order
        process = idle.get()
        try:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(f"{index}\n")
            process.stdin.flush()
            for line in process.stdout:
                answer = json.loads(line)
                if "error" in answer:
                    raise DataError(*answer["error"])
                if "shards" in answer:
                    return _done(answer)
                report(answer["bytes"])
            raise DataError(str(folder), "a worker process has ended", "start again; finished pieces are reused")
        finally:
            idle.put(process)

    with _processes(folder, workers) as processes:
        for process in processes:
            idle.put(process)
        threads = ThreadPoolExecutor(workers)
        try:
            return list(threads.map(shards_of, indices))
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _processes(folder: Path, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    # in a new session, so that Ctrl-C does not reach the workers: this process ends them
    package = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": paths},
            start_new_session=True,
        )
        for _ in range(count)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _serve(folder: Path) -> None:
    # one JSON line each: progress in bytes, then shards or an error
    def answer(**values: Any) -> None:
        print(json.dumps(values), flush=True)

    job = read_json(folder / JOB, MAX_TEXT_BYTES)
    fields = job["sources"]
    sources = Sources(tuple(fields["names"]), fields["field"], fields["separator"])
    tokenizer = open_tokenizer(folder / "tokenizer")
    for line in sys.stdin:
        piece = [Part(*part) for part in job["pieces"][int(line)]]
        try:
            with skipping(job["skip_bad"]):
                shards, bad = tokenize_piece(
                    folder, sources, piece, int(line), tokenizer, job["dtype"], lambda size: answer(bytes=size)
                )
            answer(shards=[shard.model_dump() for shard in shards], bad=bad)
        except ArchetypeError as error:
            answer(error=[error.place, error.cause, error.remedy])


if __name__ == "__main__":
    try:
        _serve(Path(sys.argv[1]))
    except BrokenPipeError:
        os._exit(1)  # the parent process has ended
