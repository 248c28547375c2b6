"""The Python of the documents passes a strict type checker; late, when the cache of `make lint` is filled."""

import os
import subprocess
import sys
from pathlib import Path

from tests.integration.test_documents import GUIDES, ROOT, blocks, files_of


def test_python_of_the_documents_passes_a_strict_type_checker(tmp_path: Path) -> None:
    """Each document in a folder of its own, with the files that it has its reader write."""
    for document in GUIDES:
        sources = {name: text for name, text in files_of(document).items() if name.endswith(".py")}
        if code := [text for language, title, text in blocks(document) if language == "python" and not title]:
            sources[f"{document.stem.lower()}_blocks.py"] = "\n".join(code)
        for name, text in sources.items():
            (tmp_path / name).write_text(text)
    files = sorted(tmp_path.glob("*.py"))
    assert len(files) >= 5
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", ROOT / "pyproject.toml", *files]
    environment = os.environ | {"MYPYPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
