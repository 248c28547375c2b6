"""The package is imported where modules of POSIX systems are missing."""

from tests.helpers import forked

PROGRAM = """
import builtins, pkgutil, sys

MISSING = {"crypt", "fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}
original = builtins.__import__

def without(name, globals=None, locals=None, fromlist=(), level=0):
    # libraries choose theirs by the system, and this is one of POSIX
    if name in MISSING and (globals or {}).get("__name__", "archetype").startswith("archetype"):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return original(name, globals, locals, fromlist, level)

for name in [name for name in sys.modules if name.partition(".")[0] == "archetype"]:
    del sys.modules[name]
builtins.__import__ = without
import archetype
names = [module.name for module in pkgutil.walk_packages(archetype.__path__, "archetype.")]
for name in names:
    if name != "archetype.__main__":
        __import__(name)
try:
    exec("import termios", {"__name__": "archetype.control"})
except ModuleNotFoundError:
    print(len(names))
"""


def test_every_module_is_imported_without_those_of_posix() -> None:
    done = forked.run(["python", "-c", PROGRAM])
    assert done.returncode == 0, done.stderr.decode()
    assert int(done.stdout) > 150
