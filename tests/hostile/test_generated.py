"""Generated hostile files: each is refused in one line, in time and within its memory, or read rightly."""

import json
import re
import shutil
import struct
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import archetype
from archetype.api.exporting import export
from archetype.api.language_model import LanguageModel
from archetype.convert.image_processor import square_pictures
from archetype.families.llama import llama
from archetype.families.vit import vit
from archetype.io.yaml import read_mapping
from archetype.models.build import build
from archetype.tokenizers import train_tokenizer
from archetype.training.datasets import TextData
from archetype.training.loop import run
from archetype.training.recipe import Recipe
from archetype.training.setup import start
from tests.helpers import forked
from tests.helpers.cases import case
from tests.helpers.examples import every
from tests.helpers.weights import randomize
from tests.hostile.hostile_files import Class
from tests.unit.studies.small import BASE, DATA, RECIPE, trained
from tests.unit.tokenizers.test_chat_template import HARMLESS, HOSTILE, WRONG

WORDS = "the cat sat on the mat, and the other cat sat there. " * 20
MEGABYTES, SECONDS = 500, 2
MANY_LINES = ("spec.", "recipe.", "experiment.", "search.")  # files of which each mistake is a line
CASES, FEW = 72, 1  # of each class: all of them, and those of every run
# what is computed on, keys that are passed over, and tokens that are added, are no part of a message
NOTICE = re.compile(r"^(device: .*|.* have no effect here|.* without effect|.* vocabulary lacks tokens, .*)\n")
PROGRAM = f"""
import os, resource, signal, sys
from archetype.apps.cli.main import main
size = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE") + ({MEGABYTES} << 20)
resource.setrlimit(resource.RLIMIT_AS, (size, size))
resource.setrlimit(resource.RLIMIT_CPU, ({SECONDS}, {SECONDS}))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
signal.alarm(60)  # for what waits instead of working
sys.argv = ["archetype", *sys.argv[1:]]
main()
"""


def llama_folder(folder: Path) -> None:
    tokenizer = train_tokenizer("byte_bpe", WORDS, 280)
    spec = llama(num_layers=1, d_model=16, num_heads=4, num_kv_heads=2, d_ff=12, vocab_size=300, context_length=256)
    export(LanguageModel(spec, randomize(build(spec)), tokenizer), folder)


def sharded_folder(folder: Path) -> None:
    spec = llama(num_layers=1, d_model=16, num_heads=4, d_ff=12, vocab_size=300, context_length=64)
    lm = LanguageModel(spec, randomize(build(spec)), train_tokenizer("byte_bpe", WORDS, 280))
    export(lm, folder, shard_bytes=4096)


def run_folder(folder: Path) -> None:
    spec = llama(num_layers=1, d_model=16, num_heads=4, d_ff=12, vocab_size=300, context_length=64)
    LanguageModel(spec, randomize(build(spec)), train_tokenizer("byte_bpe", WORDS, 280)).save(folder)


def vit_folder(folder: Path) -> None:
    spec = vit(num_layers=1, d_model=8, num_heads=2, patch_size=2, image_size=4, num_classes=3)
    LanguageModel(spec, randomize(build(spec))).save(folder)
    np.savez(folder / "images.npz", images=np.zeros((5, 3, 4, 4), np.float32), labels=np.arange(5))


def sentencepiece_folder(folder: Path) -> None:
    import sentencepiece

    folder.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([WORDS] * 5), model_prefix=str(folder / "tokenizer"), vocab_size=40,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip


def tiktoken_folder(folder: Path) -> None:
    import base64

    folder.mkdir()
    tokens = [bytes([byte]) for byte in range(256)] + [b"th", b"the", b" the"]
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)]
    (folder / "tokenizer.tiktoken").write_text("".join(lines))
    (folder / "tiktoken.json").write_text(json.dumps({"pattern": r"\w+|\W", "special_tokens": {"<|end|>": 259}}))


def texts_folder(folder: Path) -> None:
    folder.mkdir()
    (folder / "text.txt").write_text(WORDS)
    spec = llama(num_layers=1, d_model=8, num_heads=2, d_ff=8, vocab_size=300, context_length=16)
    data = {"tokenizer": "bytes", "text": ["text.txt"]}
    recipe = {"spec": spec.dump(), "data": data, "batch_size": 2, "steps": 1, "sequence_length": 8}
    (folder / "recipe.json").write_text(json.dumps(recipe))
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    experiment = json.dumps({"title": "Width", "parts": [trained()]})
    (folder / "experiment.json").write_text(experiment)
    (folder / "experiment.yaml").write_text(experiment)
    search = {"title": "x", "base": BASE, "data": DATA, "recipe": RECIPE, "rungs": [16], "space": {"d_model": [8]},
        "metric": {"name": "test.loss"}}  # fmt: skip
    (folder / "search.json").write_text(json.dumps(search))
    (folder / "spec.json").write_text(json.dumps(archetype.load_spec("deepseek-v2-tiny").dump()))
    (folder / "spec.yaml").write_text(json.dumps(archetype.load_spec("mamba-tiny").dump()))


def pictures_folder(folder: Path) -> None:
    """A published folder, and a picture with EXIF data."""
    spec = vit(num_layers=1, d_model=8, num_heads=2, patch_size=4, image_size=8, num_classes=3)
    lm = LanguageModel(spec, randomize(build(spec)), image_processor=square_pictures(3, 8).contents())
    export(lm, folder)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (9, 13), "red").save(folder / "a.jpg", exif=exif)


def adapter_folder(folder: Path) -> None:
    """An adapter of a base inside its folder."""
    llama_folder(folder / "base")
    saved = {"peft_type": "LORA", "base_model_name_or_path": "base", "r": 2, "lora_alpha": 3, "use_dora": True}
    saved |= {"target_modules": ["q_proj"], "rank_pattern": {"k_proj": 3}, "alpha_pattern": {"layers.*q_proj": 5}}
    (folder / "adapter_config.json").write_text(json.dumps(saved))
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    tensors = {"A.weight": torch.ones(2, 16), "B.weight": torch.ones(16, 2), "magnitude_vector": torch.ones(16)}
    save_file({name + end: tensor for end, tensor in tensors.items()}, folder / "adapter_model.safetensors")


def gguf_folder(folder: Path) -> None:
    """A file whose header is most of it."""
    spec = llama(num_layers=1, d_model=8, num_heads=2, d_ff=8, vocab_size=300, context_length=16)
    tokenizer = train_tokenizer("byte_bpe", WORDS, 270)
    export(LanguageModel(spec, randomize(build(spec)), tokenizer), folder, format="gguf")


def trained_folder(folder: Path) -> None:
    """A run of two steps, one checkpoint for each, whose YAML files are written as JSON."""
    spec = llama(num_layers=1, d_model=8, num_heads=2, d_ff=8, vocab_size=300, context_length=16).dump()
    data = TextData(tokenizer="byte_bpe", vocab_size=270)
    sizes = {"batch_size": 2, "steps": 2, "sequence_length": 8, "evaluate_every": 1, "checkpoint_every": 1}
    recipe = Recipe(spec=spec, data=data, **sizes)
    run(start(folder, recipe, torch.device("cpu"), text=WORDS), lambda event: None)
    for name in ("spec.yaml", "recipe.yaml"):
        (folder / name).write_text(json.dumps(read_mapping(folder / name)))
    (folder / "extensions.json").write_text(json.dumps([{"name": "mine.py", "sha256": "", "kinds": ["Norm.rms"]}]))
    (folder / "origin.json").write_text(json.dumps({"family": "llama", "labels": ["good", "bad"]}))


GENERATE = ("generate", "{}", "hello", "--max-new-tokens", "1")
RESUME = ("train", "--resume", "{}", "--steps", "3")
CHECKPOINT = "checkpoints/step-00000002"
ENCODE = ("tokenizer", "encode", "{}", "hello the cat")
# Counts beyond the file, a name without an end, a type that is none, another version and byte order.
GGUF_FILES = tuple(
    b"GGUF" + data
    for data in (
        b"\3\0\0\0" + b"\xff" * 40,
        struct.pack("<IQQ", 3, 2**60, 0),
        struct.pack("<IQQ", 3, 0, 2**60),
        struct.pack("<IQQQ", 3, 0, 1, 2**62) + b"x" * 64,
        struct.pack("<IQQQ4sIIQ", 3, 0, 1, 4, b"list", 9, 8, 2**61),
        struct.pack("<IQQQ4sIIQ", 3, 0, 1, 4, b"list", 9, 9, 1),
        struct.pack("<IQQQ4sI", 3, 0, 1, 4, b"kind", 77),
        struct.pack("<IQQ", 1, 0, 0),
        struct.pack(">IQQ", 3, 0, 0),
    )
)
FOLDERS = {
    "llama": llama_folder, "sharded": sharded_folder, "run": run_folder, "vit": vit_folder, "texts": texts_folder,
    "sentencepiece": sentencepiece_folder, "tiktoken": tiktoken_folder, "trained": trained_folder, "gguf": gguf_folder,
    "pictures": pictures_folder,
    "adapter": adapter_folder,
}  # fmt: skip
# Aliases that multiply or contain themselves, tags that make objects, numbers and nesting without end.
YAML_TEXTS = (
    "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(12)),
    "a: &a {x: 1}\n" + "".join(f"b{i}: &b{i} {{<<: [*a, *a], k{i}: [{'*a, ' * 900}]}}\n" for i in range(50)),
    "a: &a [*a]\n", "title: &a {b: *a}\n", "a: !!python/object/apply:os.system [id]\n", "- - - - " * 30_000,
    "a: " + "[" * 200_000, "? " * 100_000, "a: 0x" + "f" * 10**6, "a: 1e" + "9" * 10**5, "a: " + "9" * 10**6,
    "a: |\n" + "  x\n" * 10**6, "--- 1\n" * 10**5, "&a " * 10**5, "a: *b\n", "%YAML 9.9\n---\na: 1\n",
    "\t: x", "a: \"\\ud800\"\n", "a: 'x\n" * 10**5, "{a, b, " * 10**5, "a:\x00b\n", "\ufeff" * 3 + "a: 1",
    "layers:\n- repeat: 99999999999\n  block: {}\n", "vocab_size: 1e308\n", "vocab_size: .inf\n", "tokens: .nan\n",
)  # fmt: skip
TEMPLATES = tuple(source for name, source in {**HOSTILE, **WRONG}.items() if name not in HARMLESS)
# quick: a whole plan also times the runs of the calibration, which takes longer than the limit
PLAN = ("compare", "plan", "--quick", "--store", "{}/store")
# class: the folder, the file, the command, and further contents
CLASSES: dict[str, tuple[str, str, tuple[str, ...], tuple[str | bytes, ...]]] = {
    "spec json": ("texts", "spec.json", ("cost", "{}/spec.json"), ()),
    "spec yaml": ("texts", "spec.yaml", ("cost", "{}/spec.yaml"), YAML_TEXTS),
    "experiment": ("texts", "experiment.json", (*PLAN, "{}/experiment.json"), ()),
    "experiment yaml": ("texts", "experiment.yaml", (*PLAN, "{}/experiment.yaml"), YAML_TEXTS),
    "search": ("texts", "search.json", ("compare", "search", "{}/search.json", "--store", "{}/store"), ()),
    "recipe yaml": ("texts", "recipe.yaml", (
        "train", "--recipe", "{}/recipe.yaml", "--to", "{}/run", "--steps", "1", "--batch-size", "2"), YAML_TEXTS),
    "adapter": ("adapter", "adapter_config.json", GENERATE, ()),
    "adapter weights": ("adapter", "adapter_model.safetensors", GENERATE, ()),
    "recipe": ("texts", "recipe.json", (
        "train", "--recipe", "{}/recipe.json", "--to", "{}/run", "--steps", "1", "--batch-size", "2"), ()),
    "text": ("texts", "text.txt", ("tokenizer", "train", "--kind", "characters", "--text", "{}/text.txt",
        "--to", "{}/tokenizer"), ()),
    "packed text": ("texts", "text.gz", ("tokenizer", "train", "--kind", "characters", "--text", "{}/text.gz",
        "--to", "{}/tokenizer"), ()),
    "config": ("llama", "config.json", ("show", "{}"), ()),
    "weights": ("llama", "model.safetensors", GENERATE, ()),
    "index": ("sharded", "model.safetensors.index.json", GENERATE, (
        json.dumps({"weight_map": {"lm_head.weight": "s" * 5000}}),)),
    "generation": ("llama", "generation_config.json", GENERATE, ()),
    "tokenizer json": ("llama", "tokenizer.json", ENCODE, ()),
    "tokenizer config": ("llama", "tokenizer_config.json", ENCODE, (
        json.dumps({"chat_template": [{"name": ["default"], "template": "x"}]}),)),
    "sentencepiece": ("sentencepiece", "tokenizer.model", ENCODE, ()),
    "tiktoken": ("tiktoken", "tokenizer.tiktoken", ENCODE, ()),
    "tiktoken companion": ("tiktoken", "tiktoken.json", ENCODE, ()),
    "chat template": ("llama", "chat_template.jinja", (*GENERATE, "--chat"), TEMPLATES),
    "images": ("vit", "images.npz", ("classify", "{}", "{}/images.npz"), ()),
    "image processor": ("pictures", "preprocessor_config.json", ("classify", "{}", "{}/a.jpg"), tuple(
        json.dumps({"image_processor_type": "CLIPImageProcessor"} | change) for change in (
            {"size": {"shortest_edge": 2**20}}, {"size": 2**40}, {"crop_size": {"height": 2**20, "width": 2**20}},
            {"image_std": [1e-320] * 3}, {"rescale_factor": 1e308}, {"image_mean": []}, {"size": None}))),
    "picture": ("pictures", "a.jpg", ("classify", "{}", "{}/a.jpg"), ()),
    "run spec": ("run", "spec.yaml", GENERATE, ()),
    "run weights": ("run", "model.safetensors", GENERATE, ()),
    "run metrics": ("trained", "metrics.jsonl", RESUME, ()),
    "plotted metrics": ("trained", "metrics.jsonl", ("plot", "{}", "--x", "seconds"), ()),
    "listed metrics": ("trained", "metrics.jsonl", ("runs", "{}"), ()),
    "run recipe": ("trained", "recipe.yaml", RESUME, ()),
    "run provenance": ("trained", "provenance.json", RESUME, ()),
    "run extensions": ("trained", "extensions.json", RESUME, ()),
    "run origin": ("trained", "origin.json", GENERATE, ()),
    "run tokenizer": ("trained", "tokenizer/tokenizer.json", RESUME, ()),
    "checkpoint manifest": ("trained", f"{CHECKPOINT}/manifest.json", RESUME, ()),
    "checkpoint weights": ("trained", f"{CHECKPOINT}/model.safetensors", RESUME, ()),
    "checkpoint optimizer": ("trained", f"{CHECKPOINT}/optimizer.safetensors", RESUME, ()),
    "gguf": ("gguf", "model.gguf", ("import", "{}/model.gguf", "--to", "{}/run"), GGUF_FILES),
}  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A sound folder of each sort."""
    place = tmp_path_factory.mktemp("sound")
    for name, write in FOLDERS.items():
        write(place / name)
    return {name: place / name for name in FOLDERS}


def fault(kind: Class, place: Path, number: int) -> str | None:
    """What is wrong with the answer to one case; None where it is refused or read."""
    folder = place / str(number)
    shutil.copytree(kind.sound, folder)
    kind.spoil(folder, number)
    command = [part.replace("{}", str(folder)) for part in kind.command]
    environment = {"HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1"}
    answer = forked.run(["python", "-c", PROGRAM, *command], environment, cwd=folder)
    shutil.rmtree(folder)
    error = NOTICE.sub("", answer.stderr.decode(errors="replace"))
    line = error.removeprefix("archetype: ").removesuffix("\n")
    if answer.returncode == 0 and "Traceback" not in error:
        return None
    # a specification's mistakes are a line each, at most twenty and how many more; everything else is one line
    lines, most = line.split("\n"), 21 if kind.file.startswith(MANY_LINES) else 1
    if answer.returncode == 2 and len(lines) <= most and max(map(len, lines)) <= 300:
        return None
    return f"{number}: status {answer.returncode}, {len(line)} characters: ... {line[-300:]}"


def faults(kind: Class, place: Path, numbers: range) -> list[str]:
    """Of some cases, two at a time."""
    forked.server()  # once, and not by two threads
    with ThreadPoolExecutor(2) as pool:
        return [one for one in pool.map(partial(fault, kind, place), numbers) if one is not None]


def of(name: str, sound: dict[str, Path]) -> Class:
    folder, file, command, texts = CLASSES[name]
    return Class(sound[folder], file, command, texts)


@pytest.mark.parametrize("name", every(4, CLASSES))
def test_some_hostile_files_of_each_class_are_refused_or_read(
    name: str, sound: dict[str, Path], tmp_path: Path
) -> None:
    kind = of(name, sound)
    numbers = range(len(kind.specials), len(kind.specials) + FEW)
    assert faults(kind, tmp_path, numbers) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_hostile_files_of_each_class_are_refused_or_read(name: str, sound: dict[str, Path], tmp_path: Path) -> None:
    assert len(CLASSES) * CASES >= 900
    kind = of(name, sound)
    assert faults(kind, tmp_path, range(len(kind.specials) + CASES)) == []


def test_what_is_no_file_is_refused(sound: dict[str, Path], tmp_path: Path) -> None:
    """A pipe, a folder, nothing, a device, ...: as a text, which any other file is read like."""
    kind = of("text", sound)
    assert faults(kind, tmp_path, range(len(kind.specials))) == []


@pytest.mark.slow
def test_limits_and_judgement_would_tell(sound: dict[str, Path], tmp_path: Path) -> None:
    """The control: sound files are read, and too much time, too much memory and a trace are faults."""
    kinds = [of(name, sound) for name in CLASSES]
    once = {(kind.sound, kind.command): kind for kind in kinds if (kind.sound / kind.file).exists()}
    for number, kind in enumerate(once.values()):
        with case(kind.file, kind.command):
            folder = shutil.copytree(kind.sound, tmp_path / str(number))
            command = [part.replace("{}", str(folder)) for part in kind.command if part != "--chat"]
            command = [part.replace(f"{folder}/tokenizer", str(folder / "new")) for part in command]
            answer = forked.run(["python", "-c", PROGRAM, *command], cwd=folder)
            assert answer.returncode == 0, answer.stderr
    for work in ("while True: pass", "'x' * 10**9", "1 / 0"):
        answer = forked.run(["python", "-c", PROGRAM.replace("\nmain()", f"\n{work}")])
        assert answer.returncode not in (0, 2), work
