"""A file's tensors into a model: every one used once, none read that needs no change."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from archetype.convert.hf_folder import read_model, write_model
from archetype.errors import CheckpointError
from archetype.families import FAMILIES
from archetype.families.gpt2 import gpt2
from archetype.families.llama import llama
from archetype.io.weight_files import SINGLE
from archetype.models.build import Model, build
from tests.helpers import forked
from tests.unit.conftest import SOME, SPECS

Weights = dict[str, torch.Tensor]


def weights(folder: Path) -> Weights:
    return {name: tensor.clone() for name, tensor in load_file(folder / SINGLE).items()}


def refusal(folder: Path, changed: Weights) -> str:
    save_file(changed, folder / SINGLE)
    with pytest.raises(CheckpointError) as caught:
        read_model(folder)
    message = str(caught.value)
    assert message.startswith(f"{folder}: ")
    return message.removeprefix(f"{folder}: ")


def equal(one: Model, other: Model) -> bool:
    pairs = zip(one.named_parameters(), other.named_parameters(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


def test_a_folder_is_read_as_it_was_written(models: dict[str, Model], name: str, folder: Path) -> None:
    read = read_model(folder)[1]
    assert equal(read, models[name])
    assert not read.training


# the models that every family is like in every run, the others in `make soak`
MODELS = ("gpt2", "llama", "bert", "t5", "mamba", "deepseek_v2")
UNLIKE = pytest.mark.parametrize(
    "name", [name if name in MODELS else pytest.param(name, marks=pytest.mark.slow) for name in SPECS]
)


def unlike(tensors: dict[str, torch.Tensor]) -> list[str]:
    """The names that are not those of another layer or expert with another number."""
    return list({re.sub(r"\.\d+\.", ".N.", name): name for name in tensors}.values())


def test_the_models_whose_tensors_are_all_spoiled_are_there(models: dict[str, Model]) -> None:
    assert set(MODELS) <= models.keys()


@UNLIKE
def test_every_missing_tensor_is_named(folder: Path) -> None:
    for tensor in unlike(whole := weights(folder)):
        message = refusal(folder, {name: value for name, value in whole.items() if name != tensor})
        assert message == f"{tensor}: this tensor is missing; is the checkpoint complete?"


@SOME
def test_a_superfluous_tensor_is_named(folder: Path) -> None:
    message = refusal(folder, weights(folder) | {"model.more": torch.ones(1)})
    assert message == "model.more: the model does not have this tensor; does config.json describe this checkpoint?"


@UNLIKE
def test_every_wrong_shape_is_named_with_both_shapes(folder: Path) -> None:
    for number, tensor in enumerate(unlike(whole := weights(folder))):
        value = whole[tensor]
        shape, wrong = list(value.shape), (value[:-1], value[None], value.new_zeros(()))[number % 3]
        message = refusal(folder, whole | {tensor: wrong.contiguous()})
        assert message.startswith(f"{tensor}: has shape {list(wrong.shape)} where the model needs {shape}; does")


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_matrix_the_other_way_round_is_refused(folder: Path, name: str) -> None:
    tensor = {"gpt2": "transformer.h.0.mlp.c_fc.weight", "llama": "model.layers.0.mlp.up_proj.weight"}[name]
    whole = weights(folder)
    assert refusal(folder, whole | {tensor: whole[tensor].t().contiguous()}).startswith(f"{tensor}: has shape ")


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("gpt2", "transformer.h.0.attn.bias"),
        ("gpt2", "transformer.h.1.attn.masked_bias"),
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq"),
    ],
)
def test_buffers_in_old_files_are_ignored(models: dict[str, Model], folder: Path, name: str, extra: str) -> None:
    save_file(weights(folder) | {extra: torch.ones(3)}, folder / SINGLE)
    assert equal(read_model(folder)[1], models[name])


@pytest.mark.parametrize("name", ["gpt2", "llama", "llama tied"])
def test_files_saved_without_the_prefix_are_read(models: dict[str, Model], folder: Path, name: str) -> None:
    prefix = FAMILIES[name.split()[0]].format.prefix
    bare = {tensor.removeprefix(prefix): value for tensor, value in weights(folder).items()}
    if name == "gpt2":
        bare["h.0.attn.bias"] = torch.ones(1, 1, 4, 4)
    save_file(bare, folder / SINGLE)
    assert equal(read_model(folder)[1], models[name])


@pytest.mark.parametrize("name", ["gpt2 untied"])
def test_a_file_without_the_head_that_its_configuration_asks_for_is_refused(folder: Path, name: str) -> None:
    bare = {t.removeprefix("transformer."): v for t, v in weights(folder).items() if t != "lm_head.weight"}
    assert refusal(folder, bare) == "lm_head.weight: this tensor is missing; is the checkpoint complete?"


TIED = pytest.mark.parametrize(
    ("name", "table"), [("gpt2", "transformer.wte.weight"), ("llama tied", "model.embed_tokens.weight")]
)


@TIED
def test_an_equal_copy_of_a_tied_table_is_read(models: dict[str, Model], folder: Path, name: str, table: str) -> None:
    whole = weights(folder)
    save_file(whole | {"lm_head.weight": whole[table].clone()}, folder / SINGLE)
    assert equal(read_model(folder)[1], models[name])


@TIED
def test_a_copy_of_a_tied_table_that_differs_is_refused(folder: Path, name: str, table: str) -> None:
    whole = weights(folder)
    nudged = whole[table].clone()
    nudged[-1, -1] += 1
    for copy in (nudged, whole[table][:-1].clone(), whole[table].half()):
        message = refusal(folder, whole | {"lm_head.weight": copy})
        assert message.startswith(f"lm_head.weight: differs from {table}, though the configuration ties them; set")


@TIED
def test_a_tied_table_under_the_heads_name_alone_is_refused(folder: Path, name: str, table: str) -> None:
    whole = weights(folder)
    message = refusal(folder, whole | {"lm_head.weight": whole.pop(table)})
    assert message == f"{table}: this tensor is missing; is the checkpoint complete?"


@SOME
def test_a_quantized_tensor_is_named(folder: Path) -> None:
    whole = weights(folder)
    tensor, value = next((t, v) for t, v in whole.items() if v.dim() == 2)
    for kind in (torch.int8, torch.float8_e4m3fn):
        message = refusal(folder, whole | {tensor: value.to(kind)})
        assert message.startswith(
            f"{tensor}: is stored as {str(kind).removeprefix('torch.')}; there is no quantization_config"
        )


@SOME
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_are_converted_on_request(
    models: dict[str, Model], name: str, folder: Path, dtype: torch.dtype
) -> None:
    for (_, parameter), (_, expected) in zip(
        read_model(folder, dtype)[1].named_parameters(), models[name].named_parameters(), strict=True
    ):
        assert parameter.dtype == dtype
        assert torch.equal(parameter, expected.to(dtype))


@SOME
def test_a_file_of_one_type_keeps_it(name: str, folder: Path) -> None:
    save_file({tensor: value.bfloat16() for tensor, value in weights(folder).items()}, folder / SINGLE)
    assert {parameter.dtype for parameter in read_model(folder)[1].parameters()} == {torch.bfloat16}


@SOME
def test_a_file_of_mixed_types_becomes_its_embeddings(models: dict[str, Model], name: str, folder: Path) -> None:
    mixed = {t: v if "wte" in t or "embed" in t or "shared" in t else v.bfloat16() for t, v in weights(folder).items()}
    save_file(mixed, folder / SINGLE)
    for (_, parameter), (_, expected) in zip(
        read_model(folder)[1].named_parameters(), models[name].named_parameters(), strict=True
    ):
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, expected) or torch.equal(parameter, expected.bfloat16().float())


MAPS = Path("/proc/self/maps")
needs_maps = pytest.mark.skipif(not MAPS.exists(), reason="needs /proc/self/maps, which says where a file is mapped")


def mapped(model: Model, file: Path) -> set[str]:
    """The parameters whose memory is the file's own pages."""
    lines = [line.split(maxsplit=5) for line in MAPS.read_text().splitlines() if line.endswith(str(file))]
    places = [tuple(int(end, 16) for end in line[0].split("-")) for line in lines]
    return {n for n, p in model.named_parameters() if any(start <= p.data_ptr() < end for start, end in places)}


@needs_maps
@pytest.mark.parametrize("name", ["llama", "llama tied", "llama with biases"])
def test_weights_that_need_no_change_are_views_of_the_file(folder: Path, name: str) -> None:
    _, model = read_model(folder)
    assert mapped(model, folder / SINGLE) == {name for name, _ in model.named_parameters()}
    assert not mapped(read_model(folder, torch.bfloat16)[1], folder / SINGLE)


@needs_maps
@pytest.mark.parametrize("name", ["gpt2"])
def test_only_what_must_be_turned_is_copied(folder: Path, name: str) -> None:
    _, model = read_model(folder)
    copied = {name for name, _ in model.named_parameters()} - mapped(model, folder / SINGLE)
    assert {name.split(".", 2)[2] for name in copied} == {
        *(f"mixer.{projection}.{kind}" for projection in "qkv" for kind in ("weight", "bias")),
        *(f"{matrix}.weight" for matrix in ("mixer.o", "feedforward.up", "feedforward.down")),
    }


@pytest.mark.parametrize("name", ["llama"])
def test_writing_into_a_model_leaves_its_file_alone(folder: Path, name: str) -> None:
    before = (folder / SINGLE).read_bytes()
    with torch.no_grad():
        for parameter in (model := read_model(folder)[1]).parameters():
            parameter.zero_()
    assert (folder / SINGLE).read_bytes() == before
    assert all(not p.any() for p in model.parameters())


@pytest.mark.parametrize("name", ["llama"])
def test_a_model_outlives_its_file(models: dict[str, Model], folder: Path, name: str) -> None:
    _, model = read_model(folder)
    write_model(models["llama"], FAMILIES["llama"], folder)  # a new file under the old name
    (folder / SINGLE).unlink()
    assert equal(model, models["llama"])


LARGE = {
    "llama": llama(num_layers=8, d_model=512, num_heads=8, num_kv_heads=4, d_ff=1536, vocab_size=6000),
    "gpt2": gpt2(num_layers=8, d_model=512, num_heads=8, vocab_size=8000),
}
SMALL = {
    "llama": llama(num_layers=1, d_model=8, num_heads=1, d_ff=8),
    "gpt2": gpt2(num_layers=1, d_model=8, num_heads=1),
}

GROWTH = """
import os, resource, sys
from pathlib import Path
import torch
from archetype.convert.hf_folder import read_model

torch.set_num_threads(1)
read_model(Path(sys.argv[1]))
for small, large in zip(sys.argv[1::2], sys.argv[2::2]):
    if os.fork() == 0:  # a process of its own begins with no peak behind it
        read_model(Path(small))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        _, model = read_model(Path(large))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="session")
def growth(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Peak memory of loading each large checkpoint, as a share of its size."""
    sizes, arguments = [], []
    for family in LARGE:
        for spec in (SMALL[family], LARGE[family]):
            folder = tmp_path_factory.mktemp(family)
            write_model(build(spec), FAMILIES[family], folder)
            arguments.append(str(folder))
        sizes.append((folder / SINGLE).stat().st_size)
    done = forked.run(["python", "-c", GROWTH, *arguments])
    assert done.returncode == 0, done.stderr.decode()
    unit = 1 if sys.platform == "darwin" else 1024
    return {f: int(text) * unit / size for f, text, size in zip(LARGE, done.stdout.split(), sizes, strict=True)}


def test_loading_takes_less_than_one_and_a_fifth_of_the_checkpoint(growth: dict[str, float]) -> None:
    assert growth["gpt2"] < 1.2
    assert growth["gpt2"] > 0.5  # the matrices that are turned are in memory: the measurement measures


def test_loading_what_needs_no_change_reads_nothing(growth: dict[str, float]) -> None:
    assert growth["llama"] < 0.05


@pytest.mark.parametrize("name", ["llama"])
def test_loading_and_building_load_no_compiler_and_nothing_of_other_verbs(folder: Path) -> None:
    """It takes as long to import as torch itself, and sympy, which it reasons by, a third of that."""
    program = (
        "import sys, torch, archetype; lm = archetype.load(sys.argv[1]); lm.model(torch.tensor([[1, 2]]));"
        "archetype.build('llama-tiny');"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(folder)], check=True, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert {"torch", "archetype.convert.hf_folder"} <= loaded
    others = {"archetype.training", "archetype.surgery", "archetype.convert.gguf.graphs"}
    assert not {"torch._dynamo", "sympy", *others} & loaded
