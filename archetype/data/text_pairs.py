"""Records of texts that are compared: pairs and triplets, and pairs with a score."""

import math
from collections.abc import Mapping
from typing import Any

from archetype.data.records import LABEL, Form

TEXT_PAIR = {"anchor": Form("a text"), "positive": Form("a text that belongs to it")}
SCORED_PAIR = {"text1": Form("a text"), "text2": Form("a text"), "score": Form("a number", LABEL)}


def negatives_of(record: Mapping[str, Any]) -> list[str]:
    """The texts that do not belong to a record's anchor."""
    negatives = record.get("negative") or []
    return [negatives] if isinstance(negatives, str) else negatives


def wrong_negatives(record: Mapping[str, Any]) -> str:
    """What is wrong with a record's negatives; nothing where they are texts, or there are none."""
    negatives = record.get("negative", [])
    texts = negatives if isinstance(negatives, list) else [negatives]
    return "" if all(isinstance(text, str) and text for text in texts) else "negative is neither a text nor texts"


def wrong_score(record: Mapping[str, Any]) -> str:
    """What is wrong with a record's score; nothing where it is a number."""
    try:
        is_number = math.isfinite(float(record["score"]))
    except ValueError:
        is_number = False
    return "" if is_number else f"the score {record['score']!r:.40} is not a number"
