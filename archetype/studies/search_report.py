"""Report of a search as text, Markdown, JSON and a chart of the Pareto front."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from archetype.chart import Chart
from archetype.io import atomic
from archetype.studies.markdown import markdown_table
from archetype.studies.report import file_name
from archetype.table import Table


def search_text(result: Mapping[str, Any]) -> str:
    headings, rows = candidates_table(result)
    front = [row[:-1] for row in rows if row[-1]]
    return f"{_summary(result)}\n{Table(headings[:-1], front, len(headings) - 5)}"


def search_markdown(result: Mapping[str, Any]) -> str:
    lines = [f"# {result['title']}", "", _summary(result) + ".", ""]
    lines += [f"![All candidates and the Pareto front]({file_name(result['title'])}-front.svg)", ""]
    lines += [markdown_table(*candidates_table(result)), "", "## Record", "", f"{_record(result)}.", ""]
    return "\n".join(lines)


def search_picture(result: Mapping[str, Any]) -> Chart:
    """Plot validation score over cost, with points for each rung and a line for the last rung's Pareto front."""
    front = sorted((row["cost"], row["validation"]) for row in result["candidates"] if row["is_on_front"])
    points = {}
    for tokens in sorted({row["tokens"] for row in result["candidates"]}, reverse=True):
        rung = [row for row in result["candidates"] if row["tokens"] == tokens and row["validation"] is not None]
        points[f"{tokens:,} tokens"] = ([row["cost"] for row in rung], [row["validation"] for row in rung])
    line = ([cost for cost, _ in front], [loss for _, loss in front])
    return Chart(result["cost_name"], result["validation_name"], {"Pareto front": line}, points, log_x=True)


def write_search(result: Mapping[str, Any], folder: Path) -> None:
    atomic.make_folder(folder)
    name = file_name(result["title"])
    atomic.write_json(folder / f"{name}.json", result)
    atomic.write_bytes(folder / f"{name}.md", search_markdown(result).encode())
    atomic.write_bytes(folder / f"{name}-front.svg", search_picture(result).svg().encode())


def candidates_table(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return column headings and one row per candidate."""
    candidates = result["candidates"]
    paths = list(candidates[0]["change"])
    values = {path: [row["change"][path] for row in candidates] for path in paths}
    rows = [
        [
            *(value_text(row["change"][path], values[path]) for path in paths),
            "diverged" if row["validation"] is None else f"{row['validation']:.4f}",
            "" if row["test"] is None else f"{row['test']:.4f}",
            f"{row['cost']:,.0f}",
            f"{row['tokens']:,}",
            "front" if row["is_on_front"] else "",
        ]
        for row in candidates
    ]
    return [*paths, result["validation_name"], str(result["metric"]["name"]), result["cost_name"], "tokens", ""], rows


def value_text(value: Any, others: Sequence[Any]) -> str:
    """Format the value that a candidate sets. Show a part as its kind and the fields that candidates vary."""
    if not isinstance(value, Mapping):
        return str(value)
    same_kind = [other for other in others if isinstance(other, Mapping) and other.get("kind") == value.get("kind")]
    fields = [name for name in value if name != "kind" and any(other.get(name) != value[name] for other in same_kind)]
    values = [f"{name} {_plain(value[name])}" for name in fields]
    return ", ".join([str(value["kind"]), *values] if "kind" in value else values)


def _plain(value: Any) -> str:
    return " ".join(map(_plain, value.values())) if isinstance(value, Mapping) else str(value)


def _summary(result: Mapping[str, Any]) -> str:
    return f"{len(result['candidates'])} candidates, {result['refused']} refused by the limits"


def _record(result: Mapping[str, Any]) -> str:
    machine = result["environment"]
    return (
        f"{result['seconds'] / 60:.1f} minutes of one core; {result['date']}; {machine.get('processor', '')}; "
        f"torch {machine.get('torch', '')}, Python {machine.get('python', '')}; hash of the search `{result['hash']}`, "
        f"of the code `{result['code']}`"
    )
