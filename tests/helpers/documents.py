"""The blocks of README and docs; as a program it writes their Python into a folder, where `make lint` checks it."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
GUIDES = [ROOT / "README.md", ROOT / "AGENTS.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)


def blocks(document: Path) -> list[tuple[str, str, str]]:
    """Language, title and text of each block of a document, in order."""
    return BLOCK.findall(document.read_text())


def files_of(document: Path) -> dict[str, str]:
    """The files that a document has its reader write: blocks with a file's name as title, joined."""
    files: dict[str, str] = {}
    for _, title, text in blocks(document):
        if title and "/" not in title:
            files[title] = f"{files[title]}\n\n{text}" if title in files else text
    return files


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as Python-Markdown's `toc` and GitHub make them."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = (re.sub(r"[`*]|\]\([^)]*\)", "", heading) for heading in re.findall(r"^#+ +(.*)$", text, re.MULTILINE))
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def broken_links(document: Path, root: Path) -> list[str]:
    """The links of a document to a missing file, a file outside `root`, or an anchor that no heading has."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if not link.startswith("https://"):
            path, _, anchor = link.partition("#")
            file = (document.parent / path).resolve() if path else document
            is_inside = file.is_relative_to(root) or file.suffix == ".ipynb"  # which the site has too
            if not is_inside or not file.exists() or (anchor and anchor not in anchors(file)):
                broken.append(link)
    return broken


def write_python(folder: Path) -> None:
    """The Python of every document: its blocks as one file, and the files that it has its reader write."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.glob("*.py"):
        file.unlink()
    for document in GUIDES:
        sources = {name: text for name, text in files_of(document).items() if name.endswith(".py")}
        if code := [text for language, title, text in blocks(document) if language == "python" and not title]:
            sources[f"{document.stem.lower()}_blocks.py"] = "\n".join(code)
        for name, text in sources.items():
            (folder / name).write_text(text)
    assert len(list(folder.glob("*.py"))) >= 5


if __name__ == "__main__":
    write_python(Path(sys.argv[1]))
