"""Donors and teachers in every form of stored weights: what is said of them holds, or one line refuses them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import archetype
from archetype.api.language_model import LanguageModel
from archetype.api.loading import load
from archetype.families.llama import llama
from archetype.models.build import build
from archetype.nn.ledger import Ledger, Start, Taken
from archetype.spec.edit import assign
from archetype.tokenizers import train_tokenizer
from benchmarks.transplants import Change, changes
from tests.helpers.cases import case
from tests.helpers.examples import every
from tests.helpers.options import call
from tests.helpers.transplants import check_said
from tests.helpers.weights import randomize

WORDS = "the quick brown fox jumps over the lazy dog. " * 60
TOKENS = train_tokenizer("byte_bpe", [WORDS], 280)
SPEC = llama(
    num_layers=2, d_model=32, num_heads=4, num_kv_heads=2, d_ff=64, vocab_size=288, context_length=32, tied=True
)
CHANGES = "layers[*].mixer.num_kv_heads=1 layers[*].feedforward.d_ff=96 num_layers=3"
PACKED = "donor: has packed matrices, which cannot be changed; use the unpacked model"
UNEQUAL = "lm_head.weight: differs from model.embed_tokens.weight, though the configuration ties them; set tie_word_e"
# each form of a donor, and why it is refused
DONORS = {
    "plain": "",
    "float16": "",
    "bfloat16": "",
    "corrected": "",
    "nameless": "",
    "hf": "",
    "both": "",
    "unequal": UNEQUAL,
    "q4_0": "",
    "q8_0": "",
    "f16": "",
    "q4_k_m": "",
    "int8": PACKED,
    "int4": PACKED,
    "lossless": PACKED,
    "lora": "",
    "lora-halfway": "",
    "peft": "",
    "taught-halfway": "",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model in every form, and runs that started from it."""
    folder = tmp_path_factory.mktemp("donors")
    (folder / "words.txt").write_text(WORDS)

    def lm(*fields: str, dtype: torch.dtype = torch.float32, named: bool = True) -> LanguageModel:
        spec = assign(SPEC, fields)
        model: Any = randomize(build(spec, seed=1)).to(dtype)
        return LanguageModel(spec, model, TOKENS if named else None, special={})

    plain = lm()
    plain.save(folder / "plain")
    for name in ("float16", "bfloat16"):
        lm(dtype=getattr(torch, name)).save(folder / name)
    lm(named=False).save(folder / "nameless")
    expert = {"kind": "gated", "d_ff": 32, "activation": "silu"}
    router = {"kind": "sigmoid", "expert_bias": True}
    experts = {"kind": "experts", "num_experts": 4, "experts_per_token": 2, "router": router, "expert": expert}
    corrected = lm(f"layers[*].feedforward={json.dumps(experts)}", dtype=torch.bfloat16)
    for module in corrected.model.modules():
        if (correction := getattr(module, "correction", None)) is not None:
            module.correction = torch.randn(correction.shape) / 3  # no number of bfloat16
    corrected.save(folder / "corrected")
    archetype.export(plain, folder / "hf")
    for name, factor in {"both": 1.0, "unequal": 1.5}.items():
        shutil.copytree(folder / "hf", folder / name)
        _add_head(folder / name / "model.safetensors", factor)
    wide = lm("d_model=256", "layers[*].feedforward.d_ff=256", "num_layers=1")
    for type in ("q4_0", "q8_0", "f16", "q4_k_m"):
        archetype.export(wide if "k" in type else plain, folder / type, format="gguf", type=type)  # type: ignore[arg-type]
    for weights in ("int8", "int4"):
        lm().pack(weights).save(folder / weights)
    wide.to(dtype="bfloat16").pack("lossless").save(folder / "lossless")
    adapting = ("adapter={kind: lora, rank: 2}", "optimizer.learning_rate=0.05", "checkpoint_every=1")
    taught = ("teacher.layers=0.5", "teacher.projection=true", "checkpoint_every=1")
    for name, options in {"lora": adapting, "taught": taught}.items():
        teacher = folder / "plain" if name == "taught" else None
        trained(folder, folder / name, overrides=options, teacher=teacher, steps=2)
        shutil.copytree(folder / name, folder / f"{name}-halfway")
        (folder / f"{name}-halfway" / "model.safetensors").unlink()
    said = call(["export", "lora", "--adapter-only", "--to", "peft"], folder)
    assert said.status == 0, said.error
    return folder


def trained(folder: Path, to: Path, **more: Any) -> None:
    usual = {"steps": 1, "batch_size": 2, "sequence_length": 16, "start_from": folder / "plain", "device": "cpu"}
    archetype.train(to, folder / "words.txt", **(usual | more))


def _add_head(file: Path, factor: float) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    assert "lm_head.weight" not in tensors
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] * factor}, file)


def place_of(donor: str, folder: Path) -> str:
    files = [*(folder / donor).glob("*.gguf")]
    return f"{donor}/{files[0].name}" if files else donor


def test_each_form_of_a_donor_is_changed_as_said_or_refused(folder: Path, tmp_path: Path) -> None:
    for donor, refusal in DONORS.items():
        with case(donor):
            to, before = tmp_path / donor, sorted(folder.rglob("*"))
            words = ["transplant", place_of(donor, folder), *CHANGES.split(), "--to", str(to), "--json"]
            done = call([word for word in words if donor != "corrected" or "feedforward" not in word], folder)
            assert sorted(folder.rglob("*")) == before
            if refusal:
                assert (done.status, done.output, to.exists()) == (2, "", False)
                assert done.error.count("\n") == 1 and refusal in done.error, done.error
                continue
            assert done.status == 0, done.error
            record = json.loads(done.output)
            ledger = Ledger({name: Taken(**taken) for name, taken in record["tensors"].items()})
            donated, new = load(folder / place_of(donor, folder)), load(to)
            check_said(donated.model, new.model, ledger)
            assert record["proof"]["start"] == "changed" and record["proof"]["divergence"] > 1e-4
            assert (new.tokenizer is None) == (donated.tokenizer is None)
            assert json.loads((to / "transplant.json").read_text())["donor"] == str(folder / place_of(donor, folder))


def test_each_form_of_a_donor_starts_a_run_and_teaches(folder: Path, tmp_path: Path) -> None:
    usual = ["train", "--text", "words.txt", "--steps", "1", "--batch-size", "2", "--sequence-length", "16"]
    for donor, refusal in DONORS.items():
        of = place_of(donor, folder)
        changed = [*usual, "--from", of, "--set", "spec.layers[*].mixer.num_kv_heads=1", "--teacher", of]
        teaching = [*usual, "--from", "plain", "--teacher", of]
        anew = [*usual, "--spec", "llama-tiny", "--set", "spec.vocab_size=288", "--teacher", of]
        has_no_tokens = donor in ("unequal", "nameless")
        cases = (changed, bool(refusal)), (teaching, refusal == UNEQUAL), (anew, has_no_tokens)
        for index, (words, is_refused) in enumerate(cases):
            to = tmp_path / f"{donor}-{index}"
            with case(*words):
                done = call([*words, "--to", str(to)], folder)
                assert done.status == (2 if is_refused else 0), done.error
                assert to.exists() == (not is_refused)
                if is_refused:
                    assert done.error.count("\n") == 1 and "; " in done.error
                else:
                    load(to)


def test_types_of_packed_teachers_are_refused_by_their_field(folder: Path, tmp_path: Path) -> None:
    for teacher, weights, said in (
        ("int8", "int8", "teacher.weights: the model is already packed; load the model that was packed"),
        ("plain", "lossless", "teacher.weights: lossless weights need bfloat16 on cpu; the model has float32 on cpu"),
    ):
        words = f"train --text words.txt --steps 1 --from plain --teacher {teacher} --set teacher.weights={weights}"
        done = call([*words.split(), "--to", str(tmp_path / "new")], folder)
        assert done.status == 2 and done.error.startswith(f"archetype: {said}") and not (tmp_path / "new").exists()


@pytest.mark.parametrize("change", every(8, [pytest.param(change, id=change.name) for change in changes(SPEC)]))
def test_narrow_types_are_changed_as_wide_ones(folder: Path, change: Change) -> None:
    """Every change of the guide, of a donor in float16 and in bfloat16."""
    for name in ("float16", "bfloat16"):
        with case(name):
            lm = load(folder / name)
            for assignments in change.donor:
                lm = archetype.transplant(lm, assignments, text=WORDS).model
            tokenizer = train_tokenizer("byte_bpe", [WORDS], 270) if change.exchanges else None
            done = archetype.transplant(lm, change.assignments, text=WORDS, tokenizer=tokenizer, **change.options)
            check_said(lm.model, done.model.model, done.report.ledger)
            assert done.model.model.dtype == getattr(torch, name)
            if (proof := done.report.proof) is not None:
                assert proof.start <= done.report.ledger.start
                assert not change.is_equal or proof.start < Start.CHANGED
