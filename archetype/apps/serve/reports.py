"""GET /api/reports: study reports written by `archetype compare`, read without torch."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from archetype.apps.serve.errors import ApiError
from archetype.apps.serve.exchange import Exchange, Raw, finite
from archetype.errors import ArchetypeError, one_line
from archetype.io.files import MAX_CONFIG_BYTES, read_bytes, read_json

PICTURES = {".png": "image/png", ".svg": "image/svg+xml"}
FIELDS = ("claim", "title", "sentence", "headline", "verdict", "mode", "date", "hash")  # of the list
NO_SCRIPTS = "default-src 'none'; style-src 'unsafe-inline'; sandbox"  # for a picture opened in its own tab


class ReportList(TypedDict):
    folders: list[str]
    reports: list[dict[str, Any]]


class ReportDetails(TypedDict):
    name: str
    report: Any
    pictures: list[str]
    text: str


async def list_reports(exchange: Exchange) -> ReportList:
    """Respond with the main fields of every report."""
    reports = exchange.app.reports
    return {"folders": list(map(str, reports.folders)), "reports": await asyncio.to_thread(reports.summaries)}


async def report(exchange: Exchange) -> ReportDetails:
    """Respond with the data and the text of one report, and with the names of its pictures."""
    name = exchange.parameters["name"]
    file = exchange.app.reports.file(name, (".json",))
    try:
        return await asyncio.to_thread(_details, name, file)
    except ArchetypeError as error:
        raise ApiError("invalid_value", one_line(str(error)), "name") from None


async def picture(exchange: Exchange) -> Raw:
    """Respond with a picture of a report."""
    file = exchange.app.reports.file(exchange.parameters["name"], tuple(PICTURES))
    return Raw(
        await asyncio.to_thread(read_bytes, file),
        {
            "content-type": PICTURES[file.suffix],
            "content-security-policy": NO_SCRIPTS,
            "x-content-type-options": "nosniff",
            "cache-control": "no-cache",
            "x-dtype": "uint8",
        },
    )


class Reports:
    """Reports in some folders, which may not exist: JSON objects with titles, next to Markdown files and pictures."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders

    def summaries(self) -> list[dict[str, Any]]:
        """Return the main fields of every report. JSON files without a title are left out."""
        summaries = []
        for name, file in self._files((".json",)).items():
            try:
                report = read_json(file, MAX_CONFIG_BYTES)
            except ArchetypeError as error:
                summaries.append({"name": name, "problem": one_line(str(error))})
                continue
            if isinstance(report.get("title"), str):
                fields = {field: report[field] for field in FIELDS if _is_plain(report.get(field))}
                summaries.append({"name": name} | fields)
        return summaries

    def _files(self, suffixes: tuple[str, ...]) -> dict[str, Path]:
        # by name; earlier folders take precedence, and links must not lead out of a folder
        files: dict[str, Path] = {}
        for folder in self.folders:
            root = folder.resolve()
            for file in sorted(folder.iterdir()) if folder.is_dir() else []:
                if file.suffix in suffixes and file.is_file() and file.resolve().is_relative_to(root):
                    files.setdefault(file.stem if suffixes == (".json",) else file.name, file)
        return files

    def file(self, name: str, suffixes: tuple[str, ...]) -> Path:
        """Return the path of a listed report file. Refuse any other name.

        Raises:
            ApiError: the name is not listed.
        """
        if (file := self._files(suffixes).get(name)) is None:
            raise ApiError("report_not_found", f"no report is named {name!r:.80}; GET /api/reports lists them", "name")
        return file


def _details(name: str, file: Path) -> ReportDetails:
    text = file.with_suffix(".md")
    reports = [other.stem for other in file.parent.glob("*.json")]
    pictures = [other.name for other in file.parent.glob(f"{file.stem}*") if other.suffix in PICTURES]
    return {
        "name": name,
        "report": finite(read_json(file, MAX_CONFIG_BYTES)),
        # claim-05-quick-loss.svg is a picture of claim-05-quick, not of claim-05
        "pictures": sorted(name for name in pictures if max(filter(name.startswith, reports), key=len) == file.stem),
        "text": read_bytes(text, MAX_CONFIG_BYTES).decode("utf-8", "replace") if text.is_file() else "",
    }


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float) and value == value
