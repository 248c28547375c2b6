"""GET /api/reports: reports of studies, as `archetype compare` writes them; nothing here loads torch."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from archetype.apps.serve.errors import ApiError
from archetype.apps.serve.exchange import Exchange
from archetype.errors import ArchetypeError, one_line
from archetype.io.files import MAX_CONFIG_BYTES, read_bytes, read_json

PICTURES = {".png": "image/png", ".svg": "image/svg+xml"}
FIELDS = ("claim", "title", "sentence", "headline", "verdict", "mode", "date", "hash")  # of the list
NO_SCRIPTS = "default-src 'none'; style-src 'unsafe-inline'; sandbox"  # for a picture that is opened by itself


class Reports:
    """The reports in some folders: each a JSON object with a title, perhaps with Markdown and pictures of its name.

    Args:
        folders: which may not exist.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders

    async def show(self, exchange: Exchange) -> None:
        """Answer with a row for each report."""
        await exchange.answer({
            "folders": [str(folder) for folder in self.folders], "reports": await asyncio.to_thread(self.rows)
        })  # fmt: skip

    async def describe(self, exchange: Exchange) -> None:
        """Answer with one report: its data, its text, and the names of its pictures."""
        file = self._file(exchange.parameters["name"], (".json",))
        try:
            answer = await asyncio.to_thread(_details, file)
        except ArchetypeError as error:
            raise ApiError("invalid_value", one_line(str(error)), "name") from None
        await exchange.answer({"name": exchange.parameters["name"]} | answer)

    async def picture(self, exchange: Exchange) -> None:
        """Answer with a picture of a report."""
        file = self._file(exchange.parameters["name"], tuple(PICTURES))
        data = await asyncio.to_thread(read_bytes, file)
        headers = {
            "content-type": PICTURES[file.suffix], "content-security-policy": NO_SCRIPTS,
            "x-content-type-options": "nosniff", "cache-control": "no-cache", "x-dtype": "uint8",
        }  # fmt: skip
        await exchange.answer(data, headers=headers)

    def rows(self) -> list[dict[str, Any]]:
        """All reports by name; what is no report is left out."""
        rows = []
        for name, file in self._files((".json",)).items():
            try:
                report = read_json(file, MAX_CONFIG_BYTES)
            except ArchetypeError as error:
                rows.append({"name": name, "problem": one_line(str(error))})
                continue
            if isinstance(report.get("title"), str):
                rows.append({"name": name} | {field: report[field] for field in FIELDS if _is_plain(report.get(field))})
        return rows

    def _files(self, suffixes: tuple[str, ...]) -> dict[str, Path]:
        """The files of the folders by their names without folder; the first folder that has a name counts."""
        files: dict[str, Path] = {}
        for folder in self.folders:
            root = folder.resolve()
            for file in sorted(folder.iterdir()) if folder.is_dir() else []:
                if file.suffix in suffixes and file.is_file() and file.resolve().is_relative_to(root):
                    files.setdefault(file.stem if suffixes == (".json",) else file.name, file)
        return files

    def _file(self, name: str, suffixes: tuple[str, ...]) -> Path:
        """A file by its name in the list; no other path leads anywhere.

        Raises:
            ApiError: there is none.
        """
        if (file := self._files(suffixes).get(name)) is None:
            raise ApiError("report_not_found", f"there is no report {name!r:.80}; see /api/reports", "name")
        return file


def _details(file: Path) -> dict[str, Any]:
    text = file.with_suffix(".md")
    reports = [other.stem for other in file.parent.glob("*.json")]
    pictures = [other.name for other in file.parent.glob(f"{file.stem}*") if other.suffix in PICTURES]
    # of claim-05-quick-loss.svg, claim-05-quick is the report, not claim-05
    own = sorted(one for one in pictures if max(filter(one.startswith, reports), key=len) == file.stem)
    return {
        "report": _finite(read_json(file, MAX_CONFIG_BYTES)), "pictures": own,
        "text": read_bytes(text, MAX_CONFIG_BYTES).decode("utf-8", "replace") if text.is_file() else "",
    }  # fmt: skip


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float) and value == value


def _finite(value: Any) -> Any:
    """The same data with null for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and (value != value or abs(value) == float("inf")) else value
