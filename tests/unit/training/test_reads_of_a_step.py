"""A step waits for the device once, however many micro-batches it has: losses are read where they are logged.

Two reads more are inherent, since values of the device are shapes: the number of tokens of each expert, and the number
of vectors without padding that BatchNorm sees.
"""

from pathlib import Path
from typing import Any

import pytest

from archetype.models.build import build
from archetype.models.file import parse
from archetype.nn.buffers import copy_buffers
from archetype.training.optimizers import AdamW
from archetype.training.recipe import Recipe
from archetype.training.setup import start
from tests.helpers.examples import every
from tests.helpers.objectives import objective_recipes
from tests.helpers.reads import CPU, Case, reads_in, reads_of_a_step
from tests.helpers.recipes import BATCH, EXPERTS, decoder

ONCE = ["tolist"]  # the losses of all micro-batches with the gradient norm
OF_EXPERTS = ["tolist"]  # in each layer of experts, tokens of each expert
OF_PADDED_NORM = ["aten::index.Tensor"]  # in each norm
PLAIN = (
    "mamba", "encoder", "spans", "pairs", "images", "images, batch norm", "batch norm", "further tokens", "cosent",
    "cosine", "contrastive", "chat", "packed chat", "dpo", "classes", "regression", "masked tokens", "moving average",
)  # fmt: skip
CHUNKED = ("mamba", "masked tokens", "further tokens", "chat", "packed chat", "spans", "pairs")


CASES = [pytest.param(kind, in_chunks) for in_chunks, kinds in ((False, PLAIN), (True, CHUNKED)) for kind in kinds]


@pytest.mark.parametrize(("kind", "in_chunks"), every(4, CASES))
def test_a_step_is_read_once_after_all_of_its_micro_batches(tmp_path: Path, kind: str, in_chunks: bool) -> None:
    recipe = objective_recipes(tmp_path)[kind]
    for rows in (None, max(2, recipe.batch_size // 4)):
        state = start(tmp_path / f"run {rows}", recipe.replace(micro_batch_size=rows), CPU)
        assert reads_of_a_step(state, in_chunks) == ONCE


@pytest.mark.parametrize(("kind", "inherent"), [("experts", OF_EXPERTS * 2), ("padded batch norm", OF_PADDED_NORM * 3)])
def test_shapes_are_read_once_for_each_part_that_needs_them(tmp_path: Path, kind: str, inherent: list[str]) -> None:
    recipe = objective_recipes(tmp_path)[kind]
    state = start(tmp_path / "run", recipe, CPU)
    assert reads_of_a_step(state) == inherent + ONCE
    rows = recipe.batch_size // 2
    state = start(tmp_path / "halves", recipe.replace(micro_batch_size=rows), CPU)
    assert reads_of_a_step(state) == inherent * 2 + ONCE


@pytest.mark.slow  # starts processes
def test_several_processes_read_once(tmp_path: Path) -> None:
    recipes = objective_recipes(tmp_path)
    dense = decoder(dropout=0.0, mixer={"kind": "attention", "num_heads": 2})
    text = recipes["further tokens"].replace(spec=dense, steps=4, micro_batch_size=2, optimizer=AdamW())
    separate = text.replace(spec=dense | {"head": {"kind": "language_model", "tied": False}})
    experts = text.replace(spec=decoder(dropout=0.0, feedforward=EXPERTS))
    cases: dict[str, tuple[Recipe, dict[str, Any], bool]] = {
        "ddp": (text, {}, False),
        "ddp, chunks": (recipes["masked tokens"], {}, True),
        "ddp, further tokens": (recipes["further tokens"], {}, True),
        "ddp, cosent": (recipes["cosent"], {}, False),
        "fsdp": (text, {"shard": 2}, False),
        "tensor": (text, {"tensor": 2}, False),
        "context": (text, {"context": 2}, False),
        "context, chunks": (text, {"context": 2}, True),
        "pipeline": (separate, {"pipeline": 2}, False),
        "experts": (experts, {"shard": 2, "expert": 2}, False),
    }
    runs: list[Case] = [
        (str(tmp_path / name), recipe.replace(parallel=sizes), in_chunks)
        for name, (recipe, sizes, in_chunks) in cases.items()
    ]
    reads = [dict(zip(cases, process, strict=True)) for process in reads_in(2, runs, tmp_path)]
    once = dict.fromkeys(cases, ONCE)
    # in each layer of each of two micro-batches: tokens of each process, then of each expert here
    assert reads == [once | {"experts": ["tolist", *OF_EXPERTS] * 2 * 2 + ONCE}] * 2


@pytest.mark.parametrize(("router", "constant"), [({"kind": "hash"}, "table"), ({"expert_bias": True}, "correction")])
def test_only_running_statistics_are_copied_for_a_skipped_step(router: dict[str, Any], constant: str) -> None:
    experts = EXPERTS | {"router": {"kind": "softmax"} | router, "balance_loss": 0.0}
    model = build(parse(decoder(norm=BATCH, feedforward=experts) | {"vocab_size": 9}), seed=0)
    copied = {id(buffer) for buffer, _ in copy_buffers(model)}
    kinds = {name.rpartition(".")[2]: id(buffer) in copied for name, buffer in model.named_buffers()}
    assert kinds == {"running_mean": True, "running_var": True, constant: False}
