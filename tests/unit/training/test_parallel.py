"""Many processes train what one trains: equal losses on the same examples, checkpoints that any number goes on with."""

import logging
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from archetype.api.language_model import LanguageModel
from archetype.errors import SpecError
from archetype.estimate.parallel import Cluster, Layout, Planner, best_steps, plan_table
from archetype.families import preset
from archetype.io.tensors import Tensors
from archetype.io.yaml import mapping_to_yaml
from archetype.machine.hardware import device
from archetype.models.build import build
from archetype.runs import checkpoints
from archetype.runs.directory import Run, weights_of
from archetype.spec import parse
from archetype.tokenizers import train_tokenizer
from archetype.training import metrics, setup
from archetype.training.datasets import TextData
from archetype.training.optimizers import AdamW, Muon
from archetype.training.parallel.layout import Parallel
from archetype.training.processes import ALONE
from archetype.training.recipe import Recipe
from archetype.training.stages import Stage
from archetype.training.teacher.spec import Teacher
from tests.helpers import forked
from tests.helpers.parallel import CPU, Case, run_in, train_in, train_one
from tests.helpers.specs import attending, mixed, pair
from tests.helpers.weights import randomize

LAYOUTS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "fsdp": {"shard": 2},
    "tensor": {"tensor": 2},
    "context": {"context": 2},
}
MORE_OF_TWO: dict[str, dict[str, Any]] = {
    "shared-experts": {"shard": 2, "expert": 2},
    "two-stages": {"pipeline": 2},
}
OF_FOUR: dict[str, dict[str, Any]] = {
    "ddp-4": {},
    "fsdp-4": {"shard": 4},
    "tensor-4": {"tensor": 4},
    "fsdp-tensor": {"shard": 2, "tensor": 2},
    "copies-of-shards": {"data_parallel": 2, "shard": 2},
    "copies-tensor": {"data_parallel": 2, "tensor": 2},
    "experts-4": {"data_parallel": 2, "shard": 2, "expert": 4},
    "stages-4": {"pipeline": 2, "data_parallel": 2, "schedule": "gpipe"},
    "stages-tensor": {"pipeline": 2, "tensor": 2},
    "copies-of-experts": {"shard": 4, "expert": 2},
    "context-4": {"context": 4},
    "context-copies": {"data_parallel": 2, "context": 2},
    "context-fsdp": {"shard": 2, "context": 2},
    "context-tensor": {"context": 2, "tensor": 2},
    "context-experts": {"shard": 2, "context": 2, "expert": 4},
}
TOLERANCE = 1e-5
KILLS = 8


@pytest.fixture(scope="module")
def recipe(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """The recipe with a third of its text: the evaluation at the end of each run reads all that is held out."""
    assert isinstance(recipe.data, TextData)
    file = tmp_path_factory.mktemp("short") / "text.txt"
    file.write_text(Path(recipe.data.text[0]).read_text()[:3000])
    return recipe.replace(data=recipe.data.replace(text=(str(file),)))


def kind(sizes: dict[str, Any]) -> str:
    """Which run of one process a layout is compared with."""
    return "experts" if "expert" in sizes else "stages" if "pipeline" in sizes else "dense"


def plain(recipe: Recipe, steps: int, kind: str = "dense", **changes: Any) -> Recipe:
    """The recipe without dropout, of which each process draws its own, on rows in parts of two."""
    mixer: dict[str, Any] = {"kind": "attention", "num_heads": 4, "num_kv_heads": 4, "position": {"kind": "rotary"}}
    mixer |= {"qk_norm": {"kind": "rms"}, "bias": True, "sinks": True}
    feedforward: dict[str, Any] = {"kind": "gated", "d_ff": 32, "activation": "silu"}
    if kind == "experts":
        feedforward = {"kind": "experts", "num_experts": 4, "experts_per_token": 2, "expert": feedforward}
    norm = {"kind": "rms"}
    block = {"wiring": {"kind": "pre_norm", "norm": norm}, "mixer": mixer, "feedforward": feedforward}
    spec = {"context_length": 16, "d_model": 16, "layers": [{"repeat": 2, "block": block}], "final_norm": norm}
    spec |= {"head": {"kind": "language_model", "tied": kind == "dense"}}
    sizes = {"batch_size": 8 if kind == "stages" else 7, "micro_batch_size": 2, "steps": steps, "dtype": "float32"}
    return recipe.replace(spec=spec, **sizes, **changes)


def losses(folder: Path) -> list[float]:
    """All training and held-out losses of a run."""
    lines = metrics.read(Run(folder).metrics_file)
    return [line[name] for line in lines for name in ("loss", "validation_loss") if name in line]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of a run, finished or not."""
    tensors = Tensors.single(weights_of(Run(folder)))
    return {name: tensors.mapped(name).clone() for name in tensors.names()}


def check_equal(a: Path, b: Path) -> None:
    """The losses and the weights of two runs are equal within the tolerance."""
    assert len(losses(a)) == len(losses(b)) > 5
    assert losses(a) == pytest.approx(losses(b), abs=TOLERANCE), a
    first, second = weights(a), weights(b)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], atol=1e-3, rtol=0, msg=f"{a}: {name}")


def cases(folder: Path, recipe: Recipe, layouts: dict[str, dict[str, Any]], steps: int) -> list[Case]:
    """A run for each layout; where weights are cut, its first checkpoint is written late."""
    cut = {"shard", "tensor", "pipeline"}
    return [
        (str(folder / name), plain(recipe, steps, kind(sizes), parallel=Parallel(**sizes)), {"late": cut & set(sizes)})
        for name, sizes in layouts.items()
    ]


def train_alone(folder: Path, recipe: Recipe, steps: int, *kinds: str) -> None:
    """What all others are compared with: one process."""
    for name in kinds:
        train_one((str(folder / name), plain(recipe, steps, name), {}), ALONE)


def unfinished(run: Path, step: int) -> Path:
    """A copy of a run as it was after so many steps."""
    copy = shutil.copytree(run, run.with_name(f"{run.name}-at-{step}"))
    Run(copy).weights_file.unlink()
    for folder in Run(copy).checkpoints.iterdir():
        if int(folder.name[5:]) > step:
            shutil.rmtree(folder)
    assert metrics.rewind(Run(copy).metrics_file, step)
    return copy


def test_two_processes_train_what_one_trains(recipe: Recipe, tmp_path: Path) -> None:
    recipe = recipe.replace(evaluate_every=2, checkpoint_every=2)
    train_alone(tmp_path, recipe, 4, "dense")
    train_in(2, cases(tmp_path, recipe, LAYOUTS, 4))
    for name, sizes in LAYOUTS.items():
        check_equal(tmp_path / name, tmp_path / kind(sizes))
    # what two wrote together, each its shards, and two steps late, is the model of its step, and one goes on with it
    copy = unfinished(tmp_path / "fsdp", 2).rename(tmp_path / "fsdp-alone")
    checkpoint = checkpoints.latest(Run(copy).checkpoints)
    assert checkpoint is not None and checkpoint.weights_file.is_dir()
    train_one((str(copy), None, {"sizes": ["parallel.shard=1"]}), ALONE)
    check_equal(copy, tmp_path / "dense")
    # two go on in other layouts: each reads its shards of weights and moments
    others = {"context": ["context=1", "shard=2"], "fsdp": ["shard=1", "context=2"]}
    copies = {name: unfinished(tmp_path / name, 2).rename(tmp_path / f"{name}-otherwise") for name in others}
    train_in(2, [(str(copies[name]), None, {"sizes": [f"parallel.{n}" for n in others[name]]}) for name in others])
    for copy in copies.values():
        check_equal(copy, tmp_path / "dense")
    with pytest.raises(SpecError, match=r"the sizes need 2 processes, but only one process is running; start it"):
        setup.resume(unfinished(tmp_path / "tensor", 4), CPU)


def test_two_processes_learn_from_a_teacher_what_one_learns(recipe: Recipe, tmp_path: Path) -> None:
    recipe = recipe.replace(evaluate_every=2, checkpoint_every=2)
    spec = parse({"vocab_size": 256} | plain(recipe, 4).spec)  # type: ignore[operator]
    model = randomize(build(spec), seed=3).eval()
    LanguageModel(spec, model, train_tokenizer("bytes", "text", None)).save(tmp_path / "teacher")
    teacher = Teacher(model=str(tmp_path / "teacher"), temperature=2.0, text=0.5, layers=0.5)
    likely = teacher.replace(layers=0.0, top_k=5, cache=str(tmp_path / "cache"))
    taught = {
        name: plain(recipe, 4, teacher=settings, parallel=Parallel(**LAYOUTS[layout]))
        for name, settings, layout in (("ddp", teacher, "ddp"), ("fsdp", teacher, "fsdp"), ("likely", likely, "ddp"))
    }
    for name, settings in (("layers-alone", teacher), ("likely-alone", likely.replace(cache=""))):
        train_one((str(tmp_path / name), plain(recipe, 4, teacher=settings), {}), ALONE)
    train_in(2, [(str(tmp_path / name), chosen, {}) for name, chosen in taught.items()])
    for name in taught:
        check_equal(tmp_path / name, tmp_path / ("likely-alone" if name == "likely" else "layers-alone"))
    assert len([*(tmp_path / "cache").glob("*.safetensors")]) == 4 * 4  # micro-batches of two rows, of seven


def test_shards_are_those_of_a_whole_model_and_take_no_more_than_one_tensor_beside_them() -> None:
    run_in(1, "tests.helpers.sharded", "1")


def test_attention_of_every_kind_sees_the_positions_of_other_processes() -> None:
    run_in(2, "tests.helpers.positions")


def test_matrices_of_every_part_with_a_plan_are_shared() -> None:
    run_in(2, "tests.helpers.matrices")


@pytest.mark.slow
def test_fifty_steps_of_two_and_of_four(recipe: Recipe, tmp_path: Path) -> None:
    steps = 50
    layouts = LAYOUTS | MORE_OF_TWO
    train_alone(tmp_path, recipe, steps, "dense", "experts", "stages")
    train_in(2, cases(tmp_path, recipe, layouts, steps))
    train_in(4, cases(tmp_path, recipe, OF_FOUR, steps))
    for name, sizes in (layouts | OF_FOUR).items():
        check_equal(tmp_path / name, tmp_path / kind(sizes))
    low = plain(recipe, steps).replace(dtype="bfloat16")
    train_one((str(tmp_path / "low"), low, {}), ALONE)
    train_in(2, [(str(tmp_path / "low-fsdp"), low.replace(parallel=Parallel(shard=2)), {})])
    assert losses(tmp_path / "low-fsdp") == pytest.approx(losses(tmp_path / "low"), abs=0.03)
    for name in ("tensor", "shared-experts", "two-stages"):
        copy = unfinished(tmp_path / name, 48).rename(tmp_path / f"{name}-alone")
        train_one((str(copy), None, {"sizes": [f"parallel.{size}=1" for size in layouts[name]]}), ALONE)
        check_equal(copy, tmp_path / kind(layouts[name]))
    resumed = []
    more = {"fsdp": "shard", "tensor": "tensor", "ddp": "data_parallel", "shared-experts": "expert"}
    for name, sizes in more.items():
        copy = unfinished(tmp_path / name, 48)
        resumed.append((str(copy), None, {"sizes": [f"parallel.{sizes}=4"]}))
    train_in(4, resumed)
    for folder, _, _ in resumed:
        check_equal(Path(folder), tmp_path / ("experts" if "experts" in folder else "dense"))


def torchrun(*arguments: str) -> subprocess.Popen[str]:
    """The verb in two processes, as a person starts it."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "archetype"]
    return subprocess.Popen(
        [*command, "train", "--device=cpu", *arguments], env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def processes_of(torchrun: subprocess.Popen[str]) -> list[int]:
    """The processes of torchrun: itself and those that it has started, which have sessions of their own."""
    children = Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split()
    return [torchrun.pid, *map(int, children)]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc, which says what the children of a process are")
def test_the_verb_in_two_processes_is_killed_stopped_and_resumed(recipe: Recipe, tmp_path: Path) -> None:
    """Killed at random moments while threads save the shards of every step, at last told to stop."""
    file, run, one = tmp_path / "recipe.yaml", tmp_path / "run", tmp_path / "one"
    whole = plain(recipe, 240, checkpoint_every=1, evaluate_every=80)
    train_one((str(one), whole, {}), ALONE)
    file.write_text(mapping_to_yaml(whole.replace(parallel=Parallel(shard=2)).dump()))
    process, step = torchrun("--recipe", str(file), "--to", str(run)), 0
    for number in range(KILLS + 1):
        while (checkpoints.newest_step(Run(run).checkpoints) or 0) < step + 5:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.02)
        time.sleep(random.Random(number).random() / 5)
        for pid in processes_of(process) if number < KILLS else ():
            os.kill(pid, signal.SIGKILL)
        process.terminate()
        _, error = process.communicate()
        assert number < KILLS or "resume with: archetype train --resume" in error
        checkpoint = checkpoints.latest(Run(run).checkpoints, pytest.fail)  # whole, however it ended
        assert checkpoint is not None
        step, process = checkpoint.step, torchrun("--resume", str(run))
    output, error = process.communicate()
    assert process.returncode == 0, error
    assert "Traceback" not in error and output.strip() == ""
    check_equal(run, one)


@pytest.mark.parametrize(
    ("sizes", "num_processes", "message"),
    [
        ({"tensor": 3}, 3, "parallel.tensor: 3 does not divide the 4 of layers[0].mixer.num_heads; use 2, 4 or 1"),
        ({"shard": 2}, 3, "parallel: shard 2 needs 2 processes or a multiple, but torchrun has started 3"),
        ({"data_parallel": 2, "shard": 2}, 2, "parallel: data_parallel 2, shard 2 needs 4 processes, but torchrun has"),
        ({"shard": 4, "expert": 3}, 4, "parallel.expert: 3 does not divide the 4 of layers[0].feedforward.num_experts"),
        ({"shard": 8}, 8, "batch_size: 7 rows are too few for 8 processes"),
        ({"pipeline": 2}, 2, "parallel.pipeline: a batch of 7 rows cannot be split into micro-batches of 2"),
        ({"pipeline": 2, "shard": 2}, 4, "parallel.pipeline: cannot be combined with shard or expert"),
    ],
)
def test_sizes_that_do_not_fit(recipe: Recipe, sizes: dict[str, int], num_processes: int, message: str) -> None:
    recipe = plain(recipe, 1, "experts")
    assert isinstance(recipe.spec, dict)
    with pytest.raises(SpecError) as caught:
        layout = Parallel(**sizes).for_world(num_processes)
        layout.check(parse({"vocab_size": 256} | recipe.spec), recipe)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(("sizes", "lost"), [("shard", 1), pytest.param("data_parallel", 0, marks=pytest.mark.slow),
    pytest.param("pipeline", 0, marks=pytest.mark.slow), pytest.param("shard", 0, marks=pytest.mark.slow)])  # fmt: skip
def test_a_process_that_dies_ends_the_other_with_one_line(
    sizes: str, lost: int, recipe: Recipe, tmp_path: Path
) -> None:
    whole = plain(recipe, 5000, "stages", parallel=Parallel(**{sizes: 2}), evaluate_every=2500, checkpoint_every=2500)
    (tmp_path / "recipe.yaml").write_text(mapping_to_yaml(whole.dump()))
    command = ["archetype", "train", "--device=cpu", "--recipe", "recipe.yaml", "--to", "run"]
    with socket.socket() as probe, (tmp_path / "out").open("w+b") as output:
        probe.bind(("127.0.0.1", 0))
        together = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
        probe.close()
        ranks = [{"RANK": rank, "LOCAL_RANK": rank} for rank in ("0", "1")]
        processes = [forked.start(command, tmp_path, os.environ | together | rank, output) for rank in ranks]
        while not (tmp_path / "run" / "metrics.jsonl").exists() and all(process.running() for process in processes):
            time.sleep(0.05)
        processes[lost].kill()
        assert [processes[lost].wait(), processes[1 - lost].wait()] == [-signal.SIGKILL, 2]
    lines = (tmp_path / "out").read_text().splitlines()
    own = [line for line in lines if not line.startswith(("decoder", "chosen", "step", "device"))]
    assert len(own) == 1, lines
    assert own[0].startswith("archetype: torchrun: another process of this run has ended; see its")


def test_hints_to_those_who_write_layouts_do_not_reach_those_who_use_them(caplog: pytest.LogCaptureFixture) -> None:
    from archetype.training.parallel.processes import _silence_hints

    logger, hint = logging.getLogger("torch.distributed"), logging.getLogger("torch.distributed.tensor.x")
    before = logger.level
    try:
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            _silence_hints()
            warnings.warn_explicit("FSDP2-wrapped", UserWarning, "f.py", 1, module="torch.distributed.fsdp._state")
            hint.warning("this is suboptimal")
            warnings.warn_explicit("other", UserWarning, "f.py", 1, module="torch.nn")
        assert [str(one.message) for one in shown] == ["other"] and not caplog.records
    finally:
        logger.setLevel(before)


def test_stages_without_a_micro_batch_for_each_are_refused(recipe: Recipe) -> None:
    recipe = plain(recipe, 1, "stages").replace(batch_size=4)
    assert isinstance(recipe.spec, dict)
    spec, sizes = parse({"vocab_size": 256} | recipe.spec), Parallel(data_parallel=2, pipeline=2)
    sizes.replace(schedule="gpipe").check(spec, recipe)
    sizes.check(spec, recipe.replace(batch_size=8))
    with pytest.raises(SpecError) as caught:
        sizes.check(spec, recipe)
    cause = "1f1b needs 2 micro-batches, one per stage, but the batch has 1"
    assert str(caught.value) == f"parallel.pipeline: {cause}; raise batch_size, lower micro_batch_size, or use gpipe"


def test_what_context_parallelism_refuses(recipe: Recipe) -> None:
    recipe, layout = plain(recipe, 1), Parallel(context=2).for_world(2)
    bigger = Parallel(context=2, pipeline=2).for_world(4)
    rotary = {"kind": "rotary", "scaling": {"kind": "dynamic", "factor": 2.0, "original_context_length": 8}}
    turned, index = {"kind": "transformer_xl"}, {"kind": "lightning", "num_heads": 2, "head_dim": 8, "top_k": 3}
    refused = {
        "layers[0].mixer: mamba reads sequences in order": (mixed(kind="mamba", state_size=4), recipe, layout),
        "layers[0].mixer.position.scaling: depends on the seq": (attending(position=rotary), recipe, layout),
        "layers[0].mixer.position: adds to the scores of whole sequences": (attending(position=turned), recipe, layout),
        "layers[0].mixer.index: selects among the keys of a whole sequence, and parallel.context splits it": (
            attending(index=index),
            recipe,
            layout,
        ),
        "parallel.context: supports only next_token and masked_token on decoders": (pair(), recipe, layout),
        "parallel.context: cannot be combined with pipeline": (attending(), recipe, bigger),
        "sequence_length: 18 is not divisible by 4, twice parallel.context": (
            attending(),
            recipe.replace(sequence_length=18),
            layout,
        ),
        "compile: cannot be combined with tensor, expert or context": (
            attending(),
            recipe.replace(compile=True),
            layout,
        ),
    }
    for message, (spec, other, sizes) in refused.items():
        with pytest.raises(SpecError) as caught:
            sizes.check(spec, other)
        assert str(caught.value).startswith(message)


def test_what_needs_whole_weights_is_refused_where_they_are_cut(recipe: Recipe) -> None:
    recipe = plain(recipe, 1)
    assert isinstance(recipe.spec, dict)
    spec = parse({"vocab_size": 256} | recipe.spec)
    refused = {
        "optimizer: needs whole matrices, but": recipe.replace(optimizer=Muon()),
        "optimizer: needs whole matrices": recipe.replace(optimizer=AdamW(state_bits=8)),
        "ema_decay: needs whole weights": recipe.replace(ema_decay=0.9),
        "weights_dtype: bfloat16 weights cannot be trained by several": recipe.replace(weights_dtype="bfloat16"),
        "stages: cannot be combined with several processes; start": recipe.replace(stages=(Stage(steps=1, fit=0),)),
        "teacher.projection: needs whole weights": recipe.replace(teacher=Teacher(model="", projection=True)),
    }
    for message, other in refused.items():
        with pytest.raises(SpecError) as caught:
            Parallel(shard=2).for_world(2).check(spec, other)
        assert str(caught.value).startswith(message)
    for size in ("tensor", "pipeline", "context", "expert"):
        with pytest.raises(SpecError, match=rf"^teacher: cannot be combined with parallel.{size}; use data_parallel"):
            Parallel(**{size: 2}).check(spec, recipe.replace(teacher=Teacher(model="")))


def test_a_plan_is_the_cost_of_its_layout() -> None:
    model = preset("llama-3-8b")
    planner = Planner(model, Cluster.parse("16x8", device("H100-SXM")), 256, 8192)
    step = planner.step(Layout(shard=128), 2, recomputes=True)
    parameters = planner.report.parameters["total"]
    # weights in bfloat16 twice and gradients in float32 once, each less the own share
    assert planner.volumes(step.layout, 2, 1, True)["shard"] == pytest.approx(8 * parameters * 127 / 128)
    assert step.memory > 16 * parameters / 128
    # shards of more devices hold less, in the same time; a stage less sits idle
    assert planner.step(Layout(16, 8), 2, True).memory > step.memory
    # keys and values of whole rows are gathered in forward and again for backward, and their gradients scattered
    long = Planner(model, Cluster.parse("16x8", device("H100-SXM")), 8, 131072)
    keys = 32 * 131072 * 2 * 8 * 128 * 2
    assert long.volumes(Layout(shard=8, context=16), 1, 1, True)["context"] == pytest.approx(3 * keys * 15 / 16)
    alone, shared = (long.step(layout, 1, True).memory for layout in (Layout(shard=8), Layout(shard=8, context=16)))
    assert shared < alone / 4
    assert all(step.layout.context > 1 for step in best_steps(long))
    steps = best_steps(planner)
    recomputed = planner.step(Layout(shard=128), 2, recomputes=True)  # in less memory
    assert steps[0].seconds < recomputed.seconds
    assert not steps[0].recomputes and str(steps[0].layout) in str(plan_table(planner, steps))
    with pytest.raises(SpecError, match="no layout of 4 x A10 fits"):
        best_steps(Planner(model, Cluster.parse("1x4", device("A10")), 8, 8192))
    with pytest.raises(SpecError, match="write it as 2x8"):
        Cluster.parse("200x8", device("A10"))
