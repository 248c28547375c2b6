"""Malformed files and booby traps: one line each, exit 2, in time; nothing runs, and nothing outside is read."""

import json
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from archetype.api.exporting import export
from archetype.api.language_model import LanguageModel
from archetype.families.llama import llama
from archetype.models.build import build
from archetype.tokenizers import train_tokenizer
from tests.helpers import forked
from tests.helpers.examples import every
from tests.helpers.weights import randomize

ROOT = Path(__file__).parent.parent.parent
Spoil = Callable[[Path], None]
WRONG: list[Any] = [None, -1, 0, 1.5, True, "x", [], {}, [[]], 10**12, float("nan")]
CONFIG, TENSORS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENIZER, SETTINGS, GENERATION = "tokenizer.json", "tokenizer_config.json", "generation_config.json"


def write(name: str, data: bytes | str) -> Spoil:
    """Put a file in the folder."""
    return lambda folder: (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode()) and None


def edit(name: str, change: Callable[[Any], Any]) -> Spoil:
    """Change the contents of a JSON file."""

    def spoil(folder: Path) -> None:
        data = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
        (folder / name).write_text(json.dumps(change(data)))

    return spoil


def put(name: str, *keys: str, value: Any) -> Spoil:
    """Set a key, below others, in a JSON file."""

    def change(data: Any) -> Any:
        inner = data
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
        inner[keys[-1]] = value
        return data

    return edit(name, change)


def cut(name: str, share: float) -> Spoil:
    """Keep the first part of a file."""

    def spoil(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * share)])

    return spoil


def flip(name: str, place: int) -> Spoil:
    """Turn the bits of one byte."""

    def spoil(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[place] ^= 0xFF
        (folder / name).write_bytes(data)

    return spoil


def both(*spoils: Spoil) -> Spoil:
    def spoil(folder: Path) -> None:
        for one in spoils:
            one(folder)

    return spoil


def header(change: Callable[[dict[str, Any]], Any]) -> Spoil:
    """Rewrite the header of the weights."""

    def spoil(folder: Path) -> None:
        data = (folder / TENSORS).read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        entries = json.loads(data[8 : 8 + size])
        replacement = change(entries)
        text = json.dumps(entries if replacement is None else replacement).encode()
        (folder / TENSORS).write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])

    return spoil


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Spoil:
    """Change the weights themselves."""

    def spoil(folder: Path) -> None:
        weights = {name: tensor.clone() for name, tensor in load_file(folder / TENSORS).items()}
        change(weights)
        save_file(weights, folder / TENSORS)

    return spoil


def sharded(change: Callable[[dict[str, Any]], Any]) -> Spoil:
    """Give the weights an index, and spoil that."""

    def spoil(folder: Path) -> None:
        (folder / TENSORS).rename(folder / "a.safetensors")
        index = {"metadata": {}, "weight_map": dict.fromkeys(load_file(folder / "a.safetensors"), "a.safetensors")}
        replacement = change(index)
        (folder / INDEX).write_text(json.dumps(index if replacement is None else replacement))

    return spoil


def folder_for(name: str) -> Spoil:
    """Put a folder in a file's place."""

    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return spoil


NO_OBJECTS = ("", "7", "[]", "{", "[" * 100_000, b"\xff\xfe")
FIRST = "model.embed_tokens.weight"
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "head_dim")
RATES = ("rms_norm_eps", "attention_dropout", "initializer_range")
MALFORMED: dict[str, Spoil] = {
    **{f"config cut to {part:.0%}": cut(CONFIG, part) for part in (0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)},
    **{f"config is {text!r:.20}": write(CONFIG, text) for text in (
        "", "null", "7", "[]", '"a"', "{", "{}", "[" * 100_000, '{"a":' * 100_000, b"\xff\xfe", b"\0" * 64, "{'a': 1}",
    )},
    **{f"config {key} = {value!r}": put(CONFIG, key, value=value)
       for key in SIZES for value in WRONG if value is not None},
    **{f"config {key} = {value!r}": put(CONFIG, key, value=value)
       for key in RATES for value in (-1, "x", [], {}, True)},
    **{f"config {key} = {value!r}": put(CONFIG, key, value=value)
       for key in ("tie_word_embeddings", "attention_bias", "mlp_bias") for value in (1.5, "yes", [], {})},
    **{f"config rope {key} = {value!r}": both(
        put(CONFIG, "rope_parameters", "rope_type", value="linear"), put(CONFIG, "rope_parameters", key, value=value))
       for key in ("rope_theta", "rope_type", "factor", "beta") for value in (-1, "x", [], {})},
    **{f"config model_type = {value!r}": put(CONFIG, "model_type", value=value)
       for value in WRONG if not isinstance(value, str)},
    "config with a key that its class reads and nobody here does": put(CONFIG, "per_layer_config", value={"0": {}}),
    "config of more layers": put(CONFIG, "num_hidden_layers", value=3),
    "config of fewer layers": put(CONFIG, "num_hidden_layers", value=1),
    "config of other heads": put(CONFIG, "num_key_value_heads", value=4),
    "config of another vocabulary": put(CONFIG, "vocab_size", value=7),
    "config ties what differs": put(CONFIG, "tie_word_embeddings", value=True),
    **{f"config {key} = {value!r}": put(CONFIG, key, value=value)
       for key in ("bos_token_id", "eos_token_id") for value in ("x", 1.5, {}, [[1]])},
    **{f"weights cut to {part:.0%}": cut(TENSORS, part) for part in (0, 0.001, 0.01, 0.1, 0.3, 0.5, 0.8, 0.99, 0.9999)},
    **{f"weights are {data!r:.20}": write(TENSORS, data) for data in (
        b"", b"\0" * 8, b"\xff" * 8, b"PK\3\4" + b"\0" * 99, struct.pack("<Q", 2**62) + b"{}",
        struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 9) + b'{"a":null', struct.pack("<Q", 4) + b"\xff\xff\xff\xff",
    )},
    **{f"weights with byte {place} turned": flip(TENSORS, place) for place in (0, 1, 7, 8, 9, 20)},
    "weights of an unknown type": header(lambda h: h[FIRST].update(dtype="F7")),
    "weights of whole numbers": header(lambda h: h[FIRST].update(dtype="I32")),
    "weights of another shape": header(lambda h: h[FIRST].update(shape=[1, 1])),
    "weights of a huge shape": header(lambda h: h[FIRST].update(shape=[2**60, 2**60])),
    "weights of a negative shape": header(lambda h: h[FIRST].update(shape=[-1, 8])),
    "weights that overlap": header(lambda h: h[FIRST].update(data_offsets=[0, 4])),
    "weights beyond the end": header(lambda h: h[FIRST].update(data_offsets=[2**40, 2**41])),
    "weights that end before they start": header(lambda h: h[FIRST].update(data_offsets=[8, 0])),
    "weights without offsets": header(lambda h: h[FIRST].pop("data_offsets") and None),
    "weights by numbers": header(lambda h: {"1": 2}),
    "weights without tensors": header(lambda h: {}),
    "weights with one missing": tensors(lambda weights: weights.pop(FIRST)),
    "weights with one more": tensors(lambda weights: weights.update(more=torch.ones(1))),
    "weights with one renamed": tensors(lambda weights: weights.update({"model.x.weight": weights.pop(FIRST)})),
    "weights transposed": tensors(lambda weights: weights.update({FIRST: weights[FIRST].t().contiguous()})),
    "weights of bytes": tensors(lambda weights: weights.update({FIRST: weights[FIRST].to(torch.uint8)})),
    "no weights": lambda folder: (folder / TENSORS).unlink(),
    "no config": lambda folder: (folder / CONFIG).unlink(),
    "a folder for a config": folder_for(CONFIG),
    "a folder for weights": folder_for(TENSORS),
    **{f"index map = {value!r}": sharded(lambda index, value=value: index.update(weight_map=value)) for value in WRONG
       if value != {}},
    **{f"index is {value!r}": sharded(lambda index, value=value: [value]) for value in (None, 7, "x", [])},
    **{f"index names {value!r}": sharded(lambda index, value=value: index["weight_map"].update({FIRST: value}))
       for value in (None, 7, "", "b.safetensors", "A.safetensors", ["a.safetensors"])},
    "index of too few": sharded(lambda index: index["weight_map"].pop(FIRST) and None),
    "index of too many": sharded(lambda index: index["weight_map"].update(more="a.safetensors")),
    **{f"tokenizer cut to {part:.0%}": cut(TOKENIZER, part) for part in (0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)},
    **{f"tokenizer is {text!r:.20}": write(TOKENIZER, text) for text in (
        "", "null", "[]", "{", "{}", "[" * 100_000, b"\xff\xfe", '{"model": 7}', '{"model": {"type": "BPE"}}',
        '{"model": {"type": "WordPiece", "vocab": []}}', '{"model": {"type": "Nothing"}}',
    )},
    **{f"tokenizer {key} = {value!r}": put(TOKENIZER, key, value=value)
       for key in ("model", "added_tokens", "decoder", "pre_tokenizer")
       for value in (7, "x", [7], {"type": "Nothing"})},
    **{f"tokenizer model {key} = {value!r}": put(TOKENIZER, "model", key, value=value)
       for key in ("vocab", "merges") for value in (7, "x", [7], {"a": "b"})},
    **{f"settings are {text!r:.20}": write(SETTINGS, text) for text in NO_OBJECTS},
    **{f"settings {key} = {value!r}": put(SETTINGS, key, value=value)
       for key in ("bos_token", "eos_token") for value in (7, {"content": 7}, [])},
    **{f"settings add_bos_token = {value!r}": put(SETTINGS, "add_bos_token", value=value)
       for value in (7, "x", [], {})},
    **{f"generation is {text!r:.20}": write(GENERATION, text) for text in NO_OBJECTS},
    **{f"generation {key} = {value!r}": put(GENERATION, key, value=value)
       for key in ("temperature", "top_p", "repetition_penalty") for value in (-1, "x", [], {})},
    **{f"{name} bad_words_ids = {value!r}": put(name, "bad_words_ids", value=value)
       for name in (CONFIG, GENERATION) for value in (-1, "x", [7], [[-1]], [["x"]], [[True]])},
    **{f"generation do_sample = {value!r}": put(GENERATION, "do_sample", value=value) for value in (7, "x", [1])},
}  # fmt: skip
SPRUNG = "sprung"  # the file that every trap would make


class Trap:
    """Unpickled, it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def code(mark: Path) -> str:
    return f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n"


def trapped(name: str) -> Spoil:
    """Leave a pickle that makes a file."""
    return lambda folder: (folder / name).write_bytes(pickle.dumps(Trap(folder.parent / SPRUNG))) and None


def script(name: str) -> Spoil:
    """Leave a program that makes a file."""
    return lambda folder: (folder / name).write_text(code(folder.parent / SPRUNG)) and None


def without_weights(folder: Path) -> None:
    (folder / TENSORS).unlink()


def outside(shard: str) -> Spoil:
    """An index that names a file which lies beside the folder, and is whole."""

    def spoil(folder: Path) -> None:
        shutil.copy(folder / TENSORS, folder.parent / "outside.safetensors")
        sharded(lambda index: index["weight_map"].update(dict.fromkeys(index["weight_map"], shard)))(folder)

    return spoil


RUN = {"spec.yaml": "kind: !!python/object/apply:pathlib.Path.touch [sprung]\n"}
# A trap either is refused, or the folder is sound without it: then it is not even looked at.
TRAPS: dict[str, tuple[Spoil, bool]] = {
    "code that config.json names": (both(script("modeling.py"), put(CONFIG, "auto_map", value={
        "AutoModelForCausalLM": "modeling.Model", "AutoConfig": "modeling.Config"})), True),
    "code of another repository": (put(CONFIG, "auto_map", value={"AutoModel": "evil/repo--modeling.Model"}), True),
    "trust that config.json asks for": (
        both(script("modeling.py"), put(CONFIG, "trust_remote_code", value=True)), True),
    "a tokenizer's code": (both(script("tokenization.py"), put(SETTINGS, "auto_map", value={
        "AutoTokenizer": ["tokenization.T", None]})), True),
    "a custom type": (put(CONFIG, "model_type", value="custom"), True),
    "a quantizer": (put(CONFIG, "quantization_config", value={"quant_method": "evil"}), False),
    **{f"a program {name}": (script(name), True) for name in (
        "__init__.py", "sitecustomize.py", "conftest.py", "torch.py", "json.py", "safetensors.py", "setup.py")},
    **{f"a pickle {name} beside the weights": (trapped(name), True) for name in (
        "pytorch_model.bin", "training_args.bin", "optimizer.pt", "rng_state.pth", "scheduler.pt",
        "consolidated.00.pth")},
    **{f"a pickle {name} for the weights": (both(without_weights, trapped(name)), False) for name in (
        "pytorch_model.bin", "model.pt", "consolidated.00.pth", TENSORS)},
    **{f"an index that leads to {shard!r}": (outside(shard), False) for shard in (
        "../outside.safetensors", "./../outside.safetensors", "x/../../outside.safetensors", "..", ".", "/",
        "..\\outside.safetensors", "/etc/passwd", "/dev/zero", "a.safetensors\0", "~/outside.safetensors")},
    "an absolute shard": (lambda folder: outside(str(folder.parent / "outside.safetensors"))(folder), False),
    "a specification that makes objects": (lambda folder: [
        (folder / name).write_text(text) for name, text in RUN.items()] and None, False),
    "a tokenizer's file elsewhere": (both(lambda folder: (folder.parent / "outside.json").write_text("{}") and None,
        put(SETTINGS, "tokenizer_file", value="../outside.json")), True),
    "a name that is a place": (put(CONFIG, "_name_or_path", value="/etc/passwd"), True),
    "an adapter's base": (write("adapter_config.json", '{"base_model_name_or_path": "/etc/passwd"}'), True),
    "a template that never ends": (put(SETTINGS, "chat_template", value=
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"), True),
    "a template that reads files": (write("chat_template.jinja", "{% include '/etc/passwd' %}"), True),
    "a long comment in the weights": (
        header(lambda h: h.update(__metadata__={"format": "pt", "a": "x" * 10**6})), True),
}  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that one may hold."""
    folder = tmp_path_factory.mktemp("sound") / "model"
    tokenizer = train_tokenizer("byte_bpe", "hello hello world " * 9, 280)
    tokenizer.eos = (tokenizer.eos or (0,))[:1]
    spec = llama(num_layers=2, d_model=16, num_heads=4, num_kv_heads=2, d_ff=12, vocab_size=300, context_length=64)
    export(LanguageModel(spec, randomize(build(spec)), tokenizer), folder)
    return folder


def judged(sound: Path, place: Path, spoils: dict[str, Spoil], *arguments: str) -> dict[str, dict[str, Any]]:
    """What a command does with the folder, spoiled in each of these ways; the sound one comes first."""
    cases = {}
    for number, (name, spoil) in enumerate({"sound": lambda folder: None, **spoils}.items()):
        folder = place / f"{number:04d}" / "model"
        shutil.copytree(sound, folder)
        spoil(folder)
        cases[name] = (str(folder), ["generate", str(folder), "hello", "--max-new-tokens", "1", *arguments])
    (place / "cases.json").write_text(json.dumps(cases))
    done = forked.run(["python", "-m", "tests.helpers.watched", str(place / "cases.json")], {"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr.decode()
    results: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    first = results.pop("sound")
    assert first["status"] == 0, first
    return results


@pytest.mark.parametrize("nth", every(2, [7, 1]))
def test_a_malformed_file_is_told_in_one_line(nth: int, sound: Path, tmp_path: Path) -> None:
    results = judged(sound, tmp_path, dict([*MALFORMED.items()][::nth]))
    assert len(results) >= 200 // nth
    wrong = {
        name: (one["status"], one["error"], one["touched"])
        for name, one in results.items()
        if one["status"] != 2 or one["error"].count("\n") != 1 or one["touched"] or one["changed"]
    }
    assert wrong == {}, [(name, one["touched"]) for name, one in wrong.items()][:3]


@pytest.mark.parametrize("nth", every(2, [7, 1]))
def test_a_family_that_is_not_known_is_read_or_refused(nth: int, sound: Path, tmp_path: Path) -> None:
    """What its files say may suffice, so that not every spoiled one is refused; none ends in a trace of ours."""
    spoils = {
        name: both(put(CONFIG, "model_type", value="mystery"), spoil)
        for name, spoil in MALFORMED.items()
        if name.startswith(("config ", "weights ", "index ")) and "model_type" not in name
    }
    assert len(spoils) >= 100
    results = judged(sound, tmp_path, dict([*spoils.items()][1::nth]))
    wrong = {
        name: one
        for name, one in results.items()
        if one["status"] not in (0, 2) or one["touched"] or one["changed"] or "Traceback" in one["error"]
    }
    assert wrong == {}, [(name, one["touched"]) for name, one in wrong.items()][:3]
    assert {one["status"] for one in results.values()} == {0, 2}


def test_no_booby_trap_goes_off(sound: Path, tmp_path: Path) -> None:
    results = judged(sound, tmp_path, {name: spoil for name, (spoil, _) in TRAPS.items()})
    assert len(results) >= 30
    wrong = {
        name: one
        for name, one in results.items()
        if one["status"] != (0 if TRAPS[name][1] else 2) or one["touched"] or one["changed"]
        or (one["status"] == 2 and one["error"].count("\n") != 1)
    }  # fmt: skip
    assert wrong == {}, [(name, one["touched"]) for name, one in wrong.items()][:3]
    assert not list(tmp_path.rglob(SPRUNG)) and not (ROOT / SPRUNG).exists()


def test_a_template_that_is_a_trap_is_refused_when_it_is_asked_for(sound: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    shutil.copytree(sound, plain)
    write("chat_template.jinja", "{{ messages[0].content }}")(plain)
    without: Spoil = lambda folder: (folder / "chat_template.jinja").unlink()  # noqa: E731
    names = ("a template that never ends", "a template that reads files")
    results = judged(plain, tmp_path, {name: both(without, TRAPS[name][0]) for name in names}, "--chat")
    assert results.keys() == set(names)
    for result in results.values():
        assert result["status"] == 2 and result["error"].startswith("archetype: chat template: "), result
        assert all("from archetype.confined.process" in one for one in result["touched"])  # the process that renders


def test_the_watch_sees_what_it_is_there_to_see(sound: Path, tmp_path: Path) -> None:
    """The control: a pickle that is read makes its file, and the watch tells."""
    program = (
        "import pathlib, pickle, sys; from tests.helpers.watched import Watch\n"
        "watch = Watch(); sys.addaudithook(watch); watch.folder = pathlib.Path('/nowhere')\n"
        f"pickle.loads({pickle.dumps(Trap(tmp_path / SPRUNG))!r}); open({str(sound / CONFIG)!r})\n"
        "watch.folder = None; print(watch.touched)"
    )
    done = forked.run(["python", "-c", program])
    assert (tmp_path / SPRUNG).exists(), done.stderr
    assert b"pickle.find_class" in done.stdout and CONFIG.encode() in done.stdout
