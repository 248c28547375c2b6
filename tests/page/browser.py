"""A page in a browser, and everything about it that must not happen."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from archetype.apps.serve import page as served_page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""


def missing() -> bool:
    """Whether there is no built page, or nothing to look at it with."""
    try:
        import playwright  # noqa: F401
    except ImportError:
        return True
    return CHROMIUM is None or not (served_page.FOLDER / "index.html").is_file()


class Page:
    """A tab of the browser, which notes errors, reports and foreign requests.

    Args:
        tab: of playwright.
        port: of the server.
    """

    def __init__(self, tab: Any, port: int) -> None:
        self.tab, self.port = tab, port
        self.faults: list[str] = []
        for event, listener in self._listeners().items():
            tab.on(event, listener)
        tab.set_default_timeout(30_000)

    def open(self, hash: str) -> None:
        """Show a screen; the page itself is loaded once."""
        url = f"http://127.0.0.1:{self.port}/"
        if not self.tab.url.startswith(url):
            self.tab.goto(f"{url}#/{hash}")
        else:
            self.tab.evaluate("hash => { location.hash = hash }", f"#/{hash}")

    def address(self, *parts: str) -> str:
        """The address, once it holds some parts: it follows what is shown."""
        self.tab.wait_for_function("parts => parts.every(one => location.hash.includes(one))", arg=list(parts))
        return str(self.tab.url)

    def text(self, selector: str) -> str:
        """The text of the one element, once it is there."""
        return str(self.tab.locator(selector).first.inner_text()).strip()

    def check(self) -> None:
        """See that nothing happened that must not."""
        assert self.faults == [], self.faults
        assert self.tab.evaluate("window.violations") == []

    def leave(self) -> None:
        """Make the tab as it was."""
        for event, listener in self._listeners().items():
            self.tab.remove_listener(event, listener)
        self.tab.unroute_all(behavior="ignoreErrors")
        self.tab.emulate_media(color_scheme="light")
        if self.tab.url.startswith("http"):
            self.tab.evaluate("localStorage.clear(), sessionStorage.clear()")
        self.tab.goto("about:blank")

    def accessibility(self) -> list[str]:
        """Violations of WCAG 2.2 AA that axe reports."""
        if not self.tab.evaluate("'axe' in window"):
            self.tab.evaluate(AXE.read_text(encoding="utf-8"))
        tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
        options = {"runOnly": {"type": "tag", "values": tags}, "resultTypes": ["violations"]}
        result = self.tab.evaluate("options => axe.run(document, options)", options)
        return [
            f"{one['id']}: {node['html'][:160]} {node['failureSummary'][:200]}"
            for one in result["violations"] for node in one["nodes"]
        ]  # fmt: skip

    def _listeners(self) -> dict[str, Callable[[Any], None]]:
        return {"console": self._note, "pageerror": self._fail, "request": self._look}

    def _fail(self, error: Any) -> None:
        self.faults.append(f"error: {error}")

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"{message.type}: {message.text} {message.location.get('url')}")

    def _look(self, request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and parts.netloc != f"127.0.0.1:{self.port}":
            self.faults.append(f"foreign request: {request.url}")


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()
