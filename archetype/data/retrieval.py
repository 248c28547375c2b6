"""Retrieval data: queries, documents and relevance judgements, from a file of pairs or a folder in BEIR's format."""

from pathlib import Path
from typing import Any, NamedTuple

from archetype.data.records import LABEL, Form, read_records
from archetype.data.text_pairs import TEXT_PAIR, negatives_of, wrong_negatives
from archetype.errors import DataError

CORPUS, QUERIES = "corpus.jsonl", "queries.jsonl"  # files of a BEIR folder
JUDGEMENTS = ("qrels/test.tsv", "qrels/dev.tsv", "qrels/train.tsv", "qrels.tsv")


class RetrievalData(NamedTuple):
    """Retrieval task. No query occurs twice, and no document occurs twice.

    Attributes:
        relevant: {document index: relevance above 0} for each query.
    """

    queries: list[str]
    documents: list[str]
    relevant: list[dict[int, float]]


def read_retrieval(path: Path) -> RetrievalData:
    """Read a retrieval task from a folder in BEIR's format, or from a file of pairs of queries and documents."""
    return _of_folder(path) if path.is_dir() else _of_pairs(path)


def _of_pairs(file: Path) -> RetrievalData:
    documents: dict[str, int] = {}
    relevant: dict[str, dict[int, float]] = {}
    for record in read_records(file, TEXT_PAIR, ("negative",), wrong_negatives):
        # negatives are documents, too, but relevant to no query
        positive, *_ = (
            documents.setdefault(text, len(documents)) for text in (record["positive"], *negatives_of(record))
        )
        relevant.setdefault(record["anchor"], {})[positive] = 1.0
    return RetrievalData([*relevant], [*documents], [*relevant.values()])


def _of_folder(folder: Path) -> RetrievalData:
    id_and_text = {"_id": Form("a name"), "text": Form("a text")}
    documents = _by_id(read_records(folder / CORPUS, id_and_text, ("title",)), folder / CORPUS)
    queries = _by_id(read_records(folder / QUERIES, id_and_text), folder / QUERIES)
    file = next((folder / name for name in JUDGEMENTS if (folder / name).is_file()), folder / JUDGEMENTS[0])
    indices = {name: index for index, name in enumerate(documents)}
    relevant: dict[str, dict[int, float]] = {}
    fields = {"query-id": Form("a name"), "corpus-id": Form("a name"), "score": Form("a number", LABEL)}
    for record in read_records(file, fields, fault=_wrong_judgement):
        query, document = record["query-id"], record["corpus-id"]
        for name, known, other in ((query, queries, QUERIES), (document, indices, CORPUS)):
            if name not in known:
                raise DataError(str(file), f"names {name!r:.60}, which {other} lacks", "use files of the same task")
        if float(record["score"]) > 0:
            relevant.setdefault(query, {})[indices[document]] = float(record["score"])
    if not relevant:
        raise DataError(str(file), "no query has a relevant document", "use a score above 0 for relevant documents")
    return RetrievalData([queries[name] for name in relevant], [*documents.values()], [*relevant.values()])


def _by_id(records: list[dict[str, Any]], file: Path) -> dict[str, str]:
    # BEIR puts the title, if any, before the text
    by_id = {record["_id"]: f"{record.get('title') or ''} {record['text']}".strip() for record in records}
    if len(by_id) < len(records):
        raise DataError(str(file), "has several texts with the same _id", "use a unique _id for each text")
    return by_id


def _wrong_judgement(record: dict[str, Any]) -> str:
    try:
        float(record["score"])
    except ValueError:
        return f"the score {record['score']!r:.40} is not a number"
    return ""
