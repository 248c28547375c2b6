"""Record formats for training embeddings: pairs, triplets and scored pairs."""

import math
from collections.abc import Mapping
from typing import Any

from archetype.data.records import LABEL, Form

TEXT_PAIR = {"anchor": Form("a text"), "positive": Form("a matching text")}
SCORED_PAIR = {"text1": Form("a text"), "text2": Form("a text"), "score": Form("a number", LABEL)}


def negatives_of(record: Mapping[str, Any]) -> list[str]:
    negatives = record.get("negative") or []
    return [negatives] if isinstance(negatives, str) else negatives


def wrong_negatives(record: Mapping[str, Any]) -> str:
    """Return the fault of a record's negatives; empty if they are valid."""
    negatives = record.get("negative", [])
    candidates = negatives if isinstance(negatives, list) else [negatives]
    return (
        ""
        if all(isinstance(text, str) and text for text in candidates)
        else "negative is not a text or a list of texts"
    )


def wrong_score(record: Mapping[str, Any]) -> str:
    """Return the fault of a record's score; empty if the score is a finite number."""
    try:
        is_number = math.isfinite(float(record["score"]))
    except ValueError:
        is_number = False
    return "" if is_number else f"the score {record['score']!r:.40} is not a number"
