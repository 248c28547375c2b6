"""Donors and teachers in every form of stored weights: what is said of them holds, or one line refuses them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import archetype
from archetype.api.exporting import export_adapter
from archetype.api.language_model import LanguageModel
from archetype.api.loading import load
from archetype.families.llama import llama
from archetype.models.build import build
from archetype.nn.ledger import Ledger, Start, Taken
from archetype.spec.edit import assign
from archetype.tokenizers import train_tokenizer
from benchmarks.transplants import Change, changes
from tests.helpers.cases import case, in_one_test
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
    "corrected": "", "float16": "", "bfloat16": "", "unequal": UNEQUAL, "plain": "", "nameless": "", "lossless": PACKED,
    "int8": PACKED, "int4": PACKED, "taught-halfway": "", "lora": "", "lora-halfway": "", "q4_k_m": "", "hf": "",
    "both": "", "peft": "", "q4_0": "", "q8_0": "", "f16": "",
}  # fmt: skip
EXPERTS = (
    "layers[*].feedforward={kind: experts, num_experts: 4, experts_per_token: 2, router: {kind: sigmoid, expert_bias: "
    "true}, expert: {kind: gated, d_ff: 32, activation: silu}}"
)
WIDE = ("d_model=256", "layers[*].feedforward.d_ff=256", "num_layers=1")


def lm(*fields: str, dtype: torch.dtype = torch.float32) -> LanguageModel:
    spec = assign(SPEC, fields)
    model: Any = randomize(build(spec, seed=1)).to(dtype)
    return LanguageModel(spec, model, TOKENS, special={})


class Forms:
    """One model in every form, and runs that started from it, in a folder; each is made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "words.txt").write_text(WORDS)
        self.made: dict[str, str] = {}
        self.path("plain")

    def path(self, name: str) -> str:
        """The name of a form within the folder."""
        if name not in self.made:
            self._make(name, self.folder / name)
            files = [*(self.folder / name).glob("*.gguf")]
            self.made[name] = f"{name}/{files[0].name}" if files else name
        return self.made[name]

    def _make(self, name: str, to: Path) -> None:
        match name:
            case "plain":
                lm().save(to)
            case "float16" | "bfloat16":
                lm(dtype=getattr(torch, name)).save(to)
            case "nameless":
                replace(lm(), tokenizer=None).save(to)
            case "corrected":
                corrected = lm(EXPERTS, dtype=torch.bfloat16)
                for module in corrected.model.modules():
                    if (correction := getattr(module, "correction", None)) is not None:
                        module.correction = torch.randn(correction.shape) / 3  # no number of bfloat16
                corrected.save(to)
            case "hf":
                archetype.export(lm(), to)
            case "both" | "unequal":
                shutil.copytree(self.folder / self.path("hf"), to)
                _add_head(to / "model.safetensors", 1.0 if name == "both" else 1.5)
            case "q4_0" | "q8_0" | "f16" | "q4_k_m":
                archetype.export(lm(*WIDE) if name == "q4_k_m" else lm(), to, format="gguf", type=name)  # type: ignore[arg-type]
            case "int8" | "int4":
                lm().pack(name).save(to)
            case "lossless":
                lm(*WIDE, dtype=torch.bfloat16).pack(name).save(to)
            case "lora":
                self._train(to, "adapter={kind: lora, rank: 2}", "optimizer.learning_rate=0.05")
            case "taught":
                self._train(to, "teacher.layers=0.5", "teacher.projection=true", teacher=self.folder / "plain")
            case "peft":
                export_adapter(self.folder / self.path("lora"), to)
            case _:
                shutil.copytree(self.folder / self.path(name.removesuffix("-halfway")), to)
                (to / "model.safetensors").unlink()

    def _train(self, to: Path, *overrides: str, teacher: Path | None = None) -> None:
        archetype.train(
            to, self.folder / "words.txt", start_from=self.folder / "plain", teacher=teacher, steps=2, batch_size=2,
            sequence_length=16, device="cpu", overrides=("checkpoint_every=1", *overrides),
        )  # fmt: skip


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Forms:
    return Forms(tmp_path_factory.mktemp("donors"))


def _add_head(file: Path, factor: float) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    assert "lm_head.weight" not in tensors
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] * factor}, file)


@in_one_test("donor", every(3, DONORS))
def test_each_form_of_a_donor_is_changed_as_said_or_refused(donor: str, forms: Forms, tmp_path: Path) -> None:
    path, refusal, to = forms.path(donor), DONORS[donor], tmp_path / donor
    before = sorted(forms.folder.rglob("*"))
    words = [word for word in CHANGES.split() if donor != "corrected" or "feedforward" not in word]
    done = call(["transplant", path, *words, "--to", str(to), "--json"], forms.folder)
    assert sorted(forms.folder.rglob("*")) == before
    if refusal:
        assert (done.status, done.output, to.exists()) == (2, "", False)
        assert done.error.count("\n") == 1 and refusal in done.error, done.error
        return
    assert done.status == 0, done.error
    record = json.loads(done.output)
    ledger = Ledger({name: Taken(**taken) for name, taken in record["tensors"].items()})
    donated, new = load(forms.folder / path), load(to)
    check_said(donated.model, new.model, ledger)
    assert record["proof"]["start"] == "changed" and record["proof"]["divergence"] > 1e-4
    assert (new.tokenizer is None) == (donated.tokenizer is None)
    assert json.loads((to / "transplant.json").read_text())["donor"] == str(forms.folder / path)


@in_one_test("donor", every(9, DONORS))
def test_each_form_of_a_donor_starts_a_run_and_teaches(donor: str, forms: Forms, tmp_path: Path) -> None:
    usual = ["train", "--text", "words.txt", "--steps", "1", "--batch-size", "2", "--sequence-length", "16"]
    path, refusal = forms.path(donor), DONORS[donor]
    changed = [*usual, "--from", path, "--set", "spec.layers[*].mixer.num_kv_heads=1", "--teacher", path]
    teaching = [*usual, "--from", "plain", "--teacher", path]
    anew = [*usual, "--spec", "llama-tiny", "--set", "spec.vocab_size=288", "--teacher", path]
    has_no_tokens = donor in ("unequal", "nameless", "peft") or path.endswith(".gguf")
    cases = (changed, bool(refusal)), (teaching, refusal == UNEQUAL), (anew, has_no_tokens)
    for index, (words, is_refused) in enumerate(cases):
        to = tmp_path / f"{donor}-{index}"
        with case(*words):
            done = call([*words, "--to", str(to)], forms.folder)
            assert done.status == (2 if is_refused else 0), done.error
            assert to.exists() == (not is_refused)
            if is_refused:
                assert done.error.count("\n") == 1 and "; " in done.error
                assert words is not anew or refusal or "teacher.model: " in done.error
            else:
                load(to)


def test_types_of_packed_teachers_are_refused_by_their_field(forms: Forms, tmp_path: Path) -> None:
    for teacher, weights, said in (
        ("int8", "int8", "teacher.weights: the model is already packed; load the model that was packed"),
        ("plain", "lossless", "teacher.weights: lossless weights need bfloat16 on cpu; the model has float32 on cpu"),
    ):
        teaching = f"--from plain --teacher {forms.path(teacher)} --set teacher.weights={weights}"
        words = f"train --text words.txt --steps 1 {teaching}"
        done = call([*words.split(), "--to", str(tmp_path / "new")], forms.folder)
        assert done.status == 2 and done.error.startswith(f"archetype: {said}") and not (tmp_path / "new").exists()


@pytest.mark.parametrize("change", every(16, [pytest.param(change, id=change.name) for change in changes(SPEC)]))
def test_narrow_types_are_changed_as_wide_ones(forms: Forms, change: Change) -> None:
    """Every change of the guide, of a donor in float16 and in bfloat16."""
    for name in ("float16", "bfloat16"):
        with case(name):
            donor = load(forms.folder / forms.path(name))
            for assignments in change.donor:
                donor = archetype.transplant(donor, assignments, text=WORDS).model
            tokenizer = train_tokenizer("byte_bpe", [WORDS], 270) if change.exchanges else None
            done = archetype.transplant(donor, change.assignments, text=WORDS, tokenizer=tokenizer, **change.options)
            check_said(donor.model, done.model.model, done.report.ledger)
            assert done.model.model.dtype == getattr(torch, name)
            if (proof := done.report.proof) is not None:
                assert proof.start <= done.report.ledger.start
                assert not change.is_equal or proof.start < Start.CHANGED
