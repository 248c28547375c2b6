"""The ten lines of the guide, on a trained model: six transplants, each healed, compared with their donor."""

import json
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from archetype.runs.directory import Run
from tests.helpers import forked
from tests.helpers.documents import ROOT, files_of

GUIDE = ROOT / "docs/guide/surgery.md"
FEW = "--steps 2 --batch-size 2 --sequence-length 64"  # instead of 20 minutes
PROMISED = {  # whether all is kept
    "heads": "changed", "windows": "changed", "index": "changed", "hybrid": "changed", "experts": "rounded",
    "shallow": "changed",
}  # fmt: skip


@pytest.mark.slow
def test_the_ten_lines_of_the_guide(shared: Path, tmp_path: Path) -> None:
    files = files_of(GUIDE)
    lines = files["six.sh"].replace("--minutes 20", FEW)
    assert lines.count("\n") <= 10 and lines.count(FEW) == 1
    shutil.copytree(shared / "stories260K", tmp_path / "stories260K")
    sentences = (shared / "stories260K" / "expected_greedy.txt").read_text().split(". ")
    draw = random.Random(0)
    (tmp_path / "text.txt").write_text(". ".join(draw.choice(sentences) for _ in range(600)))
    (tmp_path / "six.yaml").write_text(files["six.yaml"])
    environment = {
        "PATH": f"{forked.programs()}:{os.environ['PATH']}", "HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    shell = ["bash", "-e", "-o", "pipefail", "-c", lines]
    done = subprocess.run(shell, cwd=tmp_path, env=environment | {"XDG_CACHE_HOME": "cache"}, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    state = {}
    for name, promise in PROMISED.items():
        record = json.loads((tmp_path / name / "transplant.json").read_text())
        assert record["promise"] == promise and record["proof"]["start"] in ("rounded", promise)
        before, after = next(both for what, both in record["costs"].items() if what.startswith("state")).values()
        state[name] = after / before
        assert record["proof"]["loss_after"] < record["proof"]["loss_before"] + 6
        assert Run(tmp_path / "healed" / name).exists
    assert state["heads"] == 0.5 and state["shallow"] == 0.8 and state["experts"] == 1.0
    assert state["windows"] < 0.4 and state["hybrid"] < 0.8 and state["index"] > 1.0
    (part,) = json.loads((tmp_path / "verdict.json").read_text())["parts"]
    assert part["arms"].keys() == {"donor", *PROMISED}
    loss, recall = part["retention"]
    assert loss["arms"].keys() == PROMISED.keys() and recall["measure"] == "recall at 64 tokens"
    assert all(about["retained"][0] < 1.05 for about in loss["arms"].values())
    assert "heads retains" in done.stdout.decode().splitlines()[-40:].__str__()
    assert any((tmp_path / "report").glob("*.html"))
