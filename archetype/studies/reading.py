"""Interpretation of a report, written after its runs. Verdicts and measurements stay unchanged.

An experiment file is fixed before its runs, and its hash covers every word. A reading adds what was learned later: the
claim's words in the source document, the answer to the claim, and whether each part tests these words.
"""

from collections.abc import Mapping
from typing import Any

from archetype.studies.evidence import CONTROL_FAILED, NOT_RUN
from archetype.studies.markdown import markdown_table

ANSWERS = ("supported", "supported in part", "contradicted", "open")
ASKS = {"sentence": "the sentence", "beside": "our addition"}
BETTER, WORSE, EQUIVALENT, UNRESOLVED = "better", "worse", "equivalent", "unresolved"


def finding(part: Mapping[str, Any]) -> str:
    """Return the result of comparing two arms, whatever was claimed; empty if the part makes no such comparison.

    Returns:
        "better" or "worse" if the 95 % interval excludes zero, followed by "by less than the margin" if the 90 %
            interval lies within the margin. Otherwise "equivalent" if it does, else "unresolved".
    """
    if part["verdict"] == NOT_RUN or part.get("decide", {}).get("kind") not in ("difference", "equivalence"):
        return ""
    if len(part.get("tests") or [part]) > 1:
        return ""  # each arm has its own line
    effect = part["effect"]
    mean, low, high = effect["effect"]
    if part["reason"].startswith((CONTROL_FAILED, "diverged")) or None in (mean, low, high):
        return UNRESOLVED
    wide, margin = effect["interval90"], effect["margin"]
    # as in `decisions`: the 90 % interval lies inside the margin
    is_equivalent = bool(wide and margin and -margin < wide[1] and wide[2] < margin)
    if low <= 0 <= high:
        return EQUIVALENT if is_equivalent else UNRESOLVED
    side = BETTER if (mean < 0) == (part["metric"]["better"] == "lower") else WORSE
    return f"{side} by less than the margin" if is_equivalent else side


def finding_of(outcome: Mapping[str, Any], part: Mapping[str, Any]) -> str:
    """Return the finding of a part. A finding in the report's reading has precedence."""
    return str(_of_part(outcome, part).get("finding") or finding(part))


def answer_of(outcome: Mapping[str, Any]) -> str:
    reading = outcome.get("reading")
    return f"{reading['answer']}: {reading['says']}" if reading else ""


def reading_lines(outcome: Mapping[str, Any]) -> list[str]:
    reading = outcome.get("reading")
    if not reading:
        return []
    words = [f'- document {at["file"]}, line {at["line"]}: "{at["words"]}"' for at in reading["document"]]
    rows = [
        (part["id"], ASKS[about.get("of", "sentence")], finding_of(outcome, part), about.get("note", ""))
        for part in outcome["parts"]
        for about in [_of_part(outcome, part)]
    ]
    table = markdown_table(("part", "asks about", "finding", "what it does and does not say"), rows)
    errata = [f"Erratum of {erratum['date']}: {erratum['says']}" for erratum in reading.get("errata", ())]
    return [
        "## What the documents say",
        "",
        *words,
        "",
        f"**{reading['answer']}**: {reading['says']}",
        "",
        table,
        "",
        *(line for erratum in errata for line in (erratum, "")),
    ]


def _of_part(outcome: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    parts: Mapping[str, Mapping[str, Any]] = (outcome.get("reading") or {}).get("parts", {})
    return parts.get(part["id"], {})
