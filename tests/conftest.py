"""What all tests share: array shapes checked at every call, no network, and the shared data where it is present."""

import atexit
import gc
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from jaxtyping import install_import_hook

from tests.helpers.examples import examples
from tests.helpers.shapes import SEEN, jaxtyped

# In a new environment the first worker compiles every module that the tests load; to compile each twice, side by side,
# takes longer than to wait for most of them.
TORCH = find_spec("torch")
if os.environ.get("PYTEST_XDIST_WORKER", "gw0") != "gw0" and TORCH and TORCH.origin:
    time.sleep(0 if sys.dont_write_bytecode or Path(cache_from_source(TORCH.origin)).exists() else 25)

gc.disable()  # while the tests are collected, which makes objects that all stay


def pytest_configure(config: pytest.Config) -> None:
    """A worker tells of each test once: xdist would send five messages, of which four are shown nowhere."""
    if config.option.verbose > 0 or config.option.durations is not None:
        return
    for plugin in config.pluginmanager.get_plugins():
        if type(plugin).__name__ == "WorkerInteractor":
            plugin.sendevent = partial(_send_what_is_shown, plugin.sendevent)


def _send_what_is_shown(send: Callable[..., None], name: str, **event: Any) -> None:
    report = event.get("data", {})
    is_silent = name == "testreport" and report["when"] != "call" and report["outcome"] == "passed"
    if name not in ("logstart", "logfinish") and not is_silent:
        send(name, **event)


def pytest_collection_finish() -> None:
    """What is loaded by now stays, and need not be looked through again; the rest is, rarely."""
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


ROOT = Path(__file__).parent.parent
SHARED = Path(os.environ.get("ARCHETYPE_SHARED", ROOT.parent / "shared"))

# every `forward` is checked against the shapes in its signature
SHAPED = [
    ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for folder in ("weights", "nn", "parts", "models")
    for file in (ROOT / "archetype" / folder).rglob("*.py")
    if "from jaxtyping import" in file.read_text(encoding="utf-8")
]
jaxtyping.jaxtyped = jaxtyped  # with which the hook decorates
install_import_hook(SHAPED, "beartype.beartype")
# by the tests that call every part in every way: in these folders, but for files that call the same again and again,
# and those marked `shapes`; elsewhere the same would be checked again, for half of the time
CHECKED = {"weights", "nn", "parts", "models"}
REPEATING = {"test_megabyte.py", "test_module.py", "test_lightning_index.py", "test_keys_from.py"}

os.environ.setdefault("HF_HUB_OFFLINE", "1")
if "ARCHETYPE_CACHE" not in os.environ:  # no test writes tokenised documents into the user's own cache
    os.environ["ARCHETYPE_CACHE"] = tempfile.mkdtemp(prefix="archetype-cache-")
    atexit.register(shutil.rmtree, os.environ["ARCHETYPE_CACHE"], ignore_errors=True)
os.environ.pop("COLUMNS", None)  # tables are as wide as where there is no terminal, whoever starts the tests
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line sets it
os.fsync = lambda fd: None  # waits for the disk, so that files outlast a power failure: a test sees that it is called
# Hypothesis also draws the literals of our modules that are loaded by then: examples would depend on the tests before
providers._get_local_constants = Constants
# the same examples in every run, and no time limit: the first builds what the others share, and the machine is busy
PHASES = (Phase.explicit, Phase.generate, Phase.shrink)
PROFILE = {"derandomize": True, "deadline": None, "database": None, "phases": PHASES}
settings.register_profile("archetype", examples(25, **PROFILE, suppress_health_check=[HealthCheck.too_slow]))
settings.load_profile("archetype")


@pytest.fixture(autouse=True, scope="module")
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Small models are several times faster on one thread than on threads that wait for each other."""
    torch = sys.modules.get("torch")
    if torch is None or request.config.option.markexpr == "slow":
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def no_pictures() -> Iterator[None]:
    """A loss curve takes longer to draw than the run of a small model; who asks for `pictures` has them."""
    loop = sys.modules.get("archetype.training.loop")
    with pytest.MonkeyPatch.context() as patch:
        if loop is not None:
            patch.setattr(loop, "draw_picture", lambda run, unit: run.loss_picture.touch())
        yield


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss curves are drawn."""
    from archetype.training import loop, plot

    monkeypatch.setattr(loop, "draw_picture", plot.draw_picture)


@pytest.fixture(autouse=True)
def shapes_are_checked(request: pytest.FixtureRequest) -> None:
    """Where that finds something new."""
    marked = request.node.get_closest_marker("shapes") is not None
    parts = set(request.path.relative_to(ROOT).parts)
    SEEN.clear()
    jaxtyping.config.update("jaxtyping_disable", not marked and (not CHECKED & parts or bool(REPEATING & parts)))


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that opens a connection fails."""
    intact = socket.socket.connect

    def refuse(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX:  # a process on this machine
            raise AssertionError(f"a test tried to connect to {address}")
        intact(self, address)

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def shared() -> Path:
    """The folder of real data beside the checkout; the test is skipped where it is absent."""
    if not (SHARED / "data").is_dir():
        pytest.skip("needs ../shared/data (real weights and texts, kept beside the checkout)")
    return SHARED / "data"
