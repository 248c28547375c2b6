"""Test the releases that are newer than the constraints: `make newer`, the fast part of `make newest`.

The environment is that of `make test`, with every newer release installed over it except PyTorch, whose download takes
minutes. Only the tests that compare with other libraries run. Continuous integration does not run this: a release of
today must not fail a commit of yesterday.
"""

import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).parent.parent
ENVIRONMENT = ROOT / ".venv-newer"
TESTS = ("tests/parity", "tests/integration/test_hf.py", "tests/unit/tokenizers", "tests/unit/evaluation/test_tasks.py")


def main() -> int:
    """Install newer releases; run the tests if there are any. Return the exit status of pytest, or 0."""
    site = sysconfig.get_path("purelib", vars={"base": str(ENVIRONMENT)})
    if not ENVIRONMENT.exists():
        venv.create(ENVIRONMENT, with_pip=True)
        # addsitedir reads the .pth files there, too: that of the editable install is one
        pinned = sysconfig.get_path("purelib")
        Path(site, "pinned.pth").write_text(f"import site; site.addsitedir({pinned!r})\n")
    python = ENVIRONMENT / "bin" / "python"
    torch = ENVIRONMENT / "torch.txt"
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    torch.write_text(next(line for line in constraints if line.startswith("torch==")))
    install = ("-m", "pip", "install", "--quiet", "--quiet", "--no-compile", "--upgrade", "--upgrade-strategy", "eager")
    subprocess.run([python, *install, "--constraint", torch, "--editable", f"{ROOT}[test]"], check=True)
    newer = sorted(f"{package.name}=={package.version}" for package in distributions(path=[site]))
    newer = [name for name in newer if not name.startswith(("pip==", "setuptools==", "archetype-lm==", "torch=="))]
    if not newer:
        print("no release is newer than the constraints")
        return 0
    print("newer than the constraints:", *newer, flush=True)
    command = [python, "-m", "pytest", "-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder", *TESTS]
    return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
