"""What is chosen where nothing is said fits together; budgets become steps; models are trained further."""

import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import archetype
from archetype.api.exporting import export
from archetype.api.language_model import LanguageModel
from archetype.api.loading import load
from archetype.api.pretrained import open_pretrained
from archetype.errors import ArchetypeError, SpecError
from archetype.families.llama import llama
from archetype.models.build import build
from archetype.runs.directory import Run, read_run_model
from archetype.tokenizers import train_tokenizer
from archetype.tokenizers.chat_template import ChatTemplate
from archetype.training.budget import Budget, predictions_of, steps_that_predict
from archetype.training.datasets import expand
from archetype.training.defaults import assemble
from archetype.training.loop import run
from archetype.training.metrics import Evaluated, Event, Notice, Step
from archetype.training.objectives import MaskedToken, SpanCorruption
from archetype.training.optimizers import AdamW, Optimizer
from archetype.training.recipe import Recipe
from archetype.training.schedules import Cosine
from archetype.training.setup import resume, start
from tests.helpers.weights import randomize

CPU = torch.device("cpu")


def texts_of(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Notice)]


def test_a_text_alone_is_enough(tmp_path: Path, text_file: Path) -> None:
    for name, size, said in (
        ("short", 300, "spec llama-tiny, tokenizer bytes, sequence_length 100, batch_size 16, steps 200, "
         "warmup_steps 20, evaluate_every 50, learning_rate 0.006 (width 64)"),
        ("long", 8_000, "spec llama-tiny, tokenizer bytes, batch_size 16, steps 200, warmup_steps 20, "
         "evaluate_every 50, learning_rate 0.006 (width 64)"),
    ):  # fmt: skip
        file = tmp_path / f"{name}.txt"
        file.write_text(text_file.read_text()[:size])
        recipe, chosen = assemble(None, {"data.text": (str(file),)})
        assert chosen == said
        assert start(tmp_path / name, recipe, CPU).recipe.steps == 200
    for spec in ("gpt2-tiny", "bert-tiny", "t5-tiny", "mamba-tiny", "megabyte-tiny", "transformer-tiny"):
        recipe, _ = assemble(None, {"data.text": (str(tmp_path / "long.txt"),), "spec": spec})
        assert start(tmp_path / spec, recipe, CPU).objective.num_validation_batches > 0


def test_what_is_said_is_not_chosen(tmp_path: Path, text_file: Path) -> None:
    fields = {"data.text": (str(text_file),), "steps": 50, "optimizer.learning_rate": 0.5, "schedule.warmup_steps": 7}
    recipe, chosen = assemble(None, fields, ["evaluate_every=9", "batch_size=3", "data.tokenizer=characters"])
    assert (recipe.steps, recipe.optimizer.learning_rate, recipe.evaluate_every) == (50, 0.5, 9)
    assert isinstance(recipe.schedule, Cosine) and recipe.schedule.warmup_steps == 7
    assert chosen == "spec llama-tiny with the tokenizer's vocabulary"
    (tmp_path / "recipe.yaml").write_text("steps: 40\n")
    recipe, chosen = assemble(tmp_path / "recipe.yaml", fields | {"steps": None})
    assert (recipe.steps, recipe.evaluate_every, chosen) == (40, 250, "")  # a recipe's defaults are fixed


def test_options_change_a_recipe_whose_parts_are_kinds_alone(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    for kind, fields, assignments in (
        ("muon", {"optimizer.learning_rate": 0.1}, ()),
        ("muon", {}, ["optimizer.learning_rate=0.1"]),
        ("null", {"optimizer.learning_rate": 0.1}, ()),
    ):
        file.write_text(f"optimizer: {kind}\n")
        optimizer = assemble(file, fields, assignments)[0].optimizer
        assert (optimizer.kind, optimizer.learning_rate) == ("adamw" if kind == "null" else kind, 0.1)
    file.write_text("optimizer: 3\n")
    with pytest.raises(SpecError, match=r"^optimizer\.learning_rate: learning_rate is inside a plain value"):
        assemble(file, {"optimizer.learning_rate": 0.1})


@pytest.mark.parametrize("text", ["1.5", "text.txt", "[1.5]", "[{a: 1}]", "[text.txt], columns: 3"])
def test_texts_of_a_recipe_are_names(text: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(f"data: {{text: {text}}}\n")
    with pytest.raises(ArchetypeError, match=r"recipe\.yaml: data\.(text|columns)"):
        assemble(tmp_path / "recipe.yaml", {})


def test_assignments_edit_the_specification_of_a_recipe(recipe: Recipe, tmp_path: Path) -> None:
    edited, _ = assemble(None, {"spec": "gpt2-tiny"}, ["spec.num_layers=3", "spec.layers[*].dropout=0.2", "steps=9"])
    spec = archetype.load_spec(edited.spec)
    assert spec == archetype.load_spec(edited.spec) and edited.steps == 9
    assert [block.dropout for block in spec.layers] == [0.2] * 3  # type: ignore[union-attr]
    data = recipe.dump()
    edited, _ = assemble(None, {"spec": data["spec"]}, ["spec.layers[1].dropout=0.3"])
    assert isinstance(edited.spec, dict) and "vocab_size" not in edited.spec  # which the tokenizer still says
    with pytest.raises(ArchetypeError, match="d_modle: is not a known key; did you mean d_model"):
        assemble(None, {"spec": "gpt2-tiny"}, ["spec.d_modle=3"])


def test_a_field_of_an_objective_needs_no_kind(tmp_path: Path, text_file: Path) -> None:
    fields = {"spec": "bert-tiny", "data.text": (str(text_file),)}
    changed, _ = assemble(None, fields, ["objective.mask_probability=0.3"])
    assert changed.objective == MaskedToken(mask_probability=0.3)
    (tmp_path / "recipe.yaml").write_text("spec: t5-tiny\nobjective: {kind: span_corruption, mean_span_length: 4.0}\n")
    changed, _ = assemble(tmp_path / "recipe.yaml", {}, ["objective.noise_density=0.3"])
    assert changed.objective == SpanCorruption(mean_span_length=4.0, noise_density=0.3)
    (tmp_path / "recipe.yaml").write_text("spec: t5-tiny\nobjective: {noise_density: 0.2}\n")
    assert assemble(tmp_path / "recipe.yaml", {})[0].objective == SpanCorruption(noise_density=0.2)
    with pytest.raises(SpecError, match=r"objective\.mask_probability: is not a known key"):
        assemble(None, {"spec": "llama-tiny", "data.text": (str(text_file),)}, ["objective.mask_probability=0.3"])


def test_files_folders_and_patterns(tmp_path: Path) -> None:
    for name in ("a.txt", "b/c.md", "b/d.txt", "b/e.py", "z.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    files = expand([str(tmp_path / "z.txt"), str(tmp_path / "b"), str(tmp_path / "*.txt"), str(tmp_path / "**/*.py")])
    names = [os.path.relpath(file, tmp_path) for file in files]
    assert names == [
        "z.txt",
        "b/c.md",
        "b/d.txt",
        "a.txt",
        "z.txt",
        "b/e.py",
    ]
    for name in ("*.rst", "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(ArchetypeError, match=r"; name files, or a pattern such as 'a/\*\.md'"):
            expand([str(tmp_path / name)])


def test_budgets_become_steps_and_settings_that_fit(tmp_path: Path, recipe: Recipe) -> None:
    plain = start(tmp_path / "plain", recipe, CPU)
    step = archetype.cost_report(plain.model.spec, 64, 16, "float32").flops["train"]
    long = recipe.replace(schedule=Cosine(), dtype="float32")
    for number, (budget, steps) in enumerate(
        ((Budget(tokens=64 * 16 * 30 + 5), 30), (Budget(flops=50.5 * step), 50), (Budget(tokens=1), 1),
         (Budget(tokens=64 * 16 * 30, flops=20 * step), 20))
    ):  # fmt: skip
        fitted = start(tmp_path / f"{number}", long, CPU, budget=budget).recipe
        assert fitted.steps == steps
        assert isinstance(fitted.schedule, Cosine) and fitted.schedule.warmup_steps == steps // 10
        assert fitted.evaluate_every == recipe.evaluate_every  # which it says
    data = {"spec": recipe.spec, "data": recipe.data.dump()}
    for said, warmup, every in (
        ({}, 3, 8),
        ({"schedule": {"warmup_steps": 20}}, 20, 8),
        ({"evaluate_every": 99}, 3, 99),
    ):
        parsed = Recipe.parse(data | {"batch_size": 64, "sequence_length": 16} | said)
        fitted = start(tmp_path / f"{said}", parsed, CPU, budget=Budget(tokens=64 * 16 * 30)).recipe
        assert isinstance(fitted.schedule, Cosine)
        assert (fitted.steps, fitted.schedule.warmup_steps, fitted.evaluate_every) == (30, warmup, every)
    few, many = (start(tmp_path / f"{m}", long, CPU, budget=Budget(minutes=m)).recipe.steps for m in (0.01, 1.0))
    assert 1 <= few < many


def test_a_model_is_trained_further(tmp_path: Path, recipe: Recipe, text_file: Path) -> None:
    run(start(tmp_path / "first", recipe, CPU), lambda event: None)
    lm = load(tmp_path / "first")
    LanguageModel(lm.spec, lm.model, lm.tokenizer, special={"eos_token_id": 7}).save(tmp_path / "imported")
    fields = {"data.text": (str(text_file),), "steps": 3, "batch_size": 8}
    pretrained = open_pretrained(tmp_path / "imported")
    state = start(tmp_path / "further", assemble(None, fields, pretrained=pretrained)[0], CPU, pretrained=pretrained)
    weights = state.model.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in lm.model.state_dict().items())
    assert not Run(tmp_path / "further").weights_file.exists()
    assert all(torch.equal(t, weights[n]) for n, t in read_run_model(Run(tmp_path / "further")).state_dict().items())
    shutil.rmtree(tmp_path / "imported")
    resumed, events = resume(tmp_path / "further", CPU), list[Event]()  # before its first step
    assert run(resumed, events.append) is None
    assert sum(isinstance(event, Step) for event in events) == 3
    assert load(tmp_path / "further").special["eos_token_id"] == 7
    assert not torch.equal(resumed.model.state_dict()["lm_head.weight"], weights["lm_head.weight"])
    first = open_pretrained(tmp_path / "first")
    (tmp_path / "recipe.yaml").write_text("data: {tokenizer: bytes}\n")
    for file, more, assignments, place in (
        (None, {"data.tokenizer": "bytes"}, [], "data.tokenizer"),
        (None, {"data.vocab_size": 300}, [], "data.vocab_size"), (None, {}, ["data.lowercase=true"], "data.lowercase"),
        (None, {}, ["data.tokenizer=byte_bpe"], "data.tokenizer"),
        (tmp_path / "recipe.yaml", {}, [], f"{tmp_path / 'recipe.yaml'}: data.tokenizer"),
    ):  # fmt: skip
        with pytest.raises(SpecError) as error:
            assemble(file, fields | more, assignments, pretrained=first)
        assert str(error.value) == f"{place}: {tmp_path / 'first'} already determines it; remove one of them"
    same = {"spec": first.model.spec.dump(), "data.tokenizer": str(tmp_path / "first")}  # what it brings may be said
    assert assemble(None, fields | same, pretrained=first)[0].spec == first.model.spec.dump()
    # another specification is a transplant
    wider, _ = assemble(None, fields, ["spec.layers[*].feedforward.d_ff=48"], pretrained=first)
    assert first.for_recipe(wider).model.spec.dump() == wider.spec != first.model.spec.dump()
    other = assemble(None, fields | {"spec": "bert-tiny"}, pretrained=first)[0]
    with pytest.raises(SpecError, match="kind: the donor is of kind decoder, but the new model of kind encoder"):
        first.for_recipe(other)


def test_weights_that_are_not_used_are_said(tmp_path: Path, recipe: Recipe) -> None:
    run(start(tmp_path / "first", recipe, CPU), lambda event: None)
    source = str(tmp_path / "first")
    state = start(tmp_path / "second", recipe.replace(spec=source), CPU)
    (note,) = state.notes
    assert note == (
        f"{source} has weights, which are not used: training starts from random ones; --from {source} uses them"
    )
    assert start(tmp_path / "third", recipe.replace(spec=f"{source}/spec.yaml"), CPU).notes == ()


def test_settings_that_cannot_do_well_are_said_once(tmp_path: Path, recipe: Recipe) -> None:
    events: list[Event] = []
    high = recipe.replace(steps=60, optimizer=AdamW(learning_rate=1.0), schedule=Cosine(warmup_steps=1))
    run(start(tmp_path / "high", high, CPU), events.append)
    (text,) = texts_of(events)  # it recovers as the rate falls
    assert text.startswith("the loss of 6 steps, ") and ", is worse than guessing, 5.55: a learning" in text
    assert text.endswith("a learning rate of 1 is too high; stop, and start again with a lower learning rate")
    events.clear()
    run(start(tmp_path / "slow", recipe.replace(steps=4, schedule=Cosine(warmup_steps=8)), CPU), events.append)
    assert texts_of(events)[:1] == [
        "the warm-up of 8 steps is not shorter than the run of 4: the learning rate only rises, to 0.0005 of 0.001; "
        "use fewer warmup_steps"
    ]
    events.clear()
    run(start(tmp_path / "well", recipe.replace(steps=30, optimizer=AdamW(learning_rate=1e-2)), CPU), events.append)
    assert texts_of(events) == []


def test_a_run_without_its_tokenizer_is_named(tmp_path: Path, recipe: Recipe) -> None:
    start(tmp_path / "run", recipe, CPU)
    shutil.rmtree(tmp_path / "run" / "tokenizer")
    with pytest.raises(ArchetypeError, match="run/tokenizer: is missing; restore the run's tokenizer"):
        resume(tmp_path / "run", CPU)


def test_train_is_a_function(tmp_path: Path, recipe: Recipe, text_file: Path) -> None:
    events: list[Event] = []
    overrides = ["spec.num_layers=1", "evaluate_every=2"]
    lm = archetype.train(tmp_path / "run", text_file, "llama-tiny", steps=4, batch_size=2, overrides=overrides,
                         sequence_length=16, on_event=events.append)  # fmt: skip
    assert sum(isinstance(event, Step) for event in events) == 4
    assert [event.step for event in events if isinstance(event, Evaluated)] == [2, 4, 4]
    assert len(lm.spec.layers) == 1 and lm.generate("the", max_new_tokens=3)  # type: ignore[union-attr]
    again = archetype.train(tmp_path / "more", [text_file], start_from=tmp_path / "run", steps=1, batch_size=2)
    assert again.spec == lm.spec


def test_a_hugging_face_folder_is_trained_further(tmp_path: Path, text_file: Path) -> None:
    """Its weights, tokenizer and chat template; transformers loads what comes out of it."""
    spec = llama(num_layers=1, d_model=16, num_heads=2, d_ff=24, vocab_size=300, context_length=32)
    tokenizer = train_tokenizer("byte_bpe", text_file.read_text(), 300)
    lm = LanguageModel(spec, randomize(build(spec)), tokenizer, template=ChatTemplate("{{ messages[0].content }}", {}))
    export(lm, tmp_path / "published")
    further = archetype.train(tmp_path / "run", text_file, start_from=tmp_path / "published", steps=1, batch_size=2)
    begun = load_file(tmp_path / "run" / "checkpoints" / "step-00000000" / "model.safetensors")
    assert begun.keys() == lm.model.state_dict().keys()
    assert all(torch.equal(tensor, begun[name]) for name, tensor in lm.model.state_dict().items())
    assert not torch.equal(further.model.state_dict()["final_norm.weight"], begun["final_norm.weight"])
    assert further.tokenizer is not None
    assert further.tokenizer.encode("the model reads") == tokenizer.encode("the model reads")
    assert further.template is not None and further.template.source == "{{ messages[0].content }}"
    assert further.spec == lm.spec.replace(name=further.spec.name)
    assert export(further, tmp_path / "again").name == "llama"


def test_a_tokenizer_that_learns_its_vocabulary_leaves_the_default_models_open(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("so it is and so it was " * 400)
    for tokenizer in ("bpe", "characters"):
        text = {"data.text": [str(tmp_path / "text.txt")], "data.tokenizer": tokenizer}
        recipe, chosen = assemble(None, text)
        assert "spec llama-tiny with the tokenizer's vocabulary" in chosen
        assert isinstance(recipe.spec, dict) and "vocab_size" not in recipe.spec
        assert start(tmp_path / tokenizer, recipe.replace(steps=1), torch.device("cpu")).model.spec.d_model == 64


def test_each_optimizer_gets_a_rate_of_its_own(text_file: Path) -> None:
    said = {"adamw": 0.006, "muon": 0.006, "lion": 0.0006, "adafactor": 0.01, "sgd": 0.1}
    assert said.keys() == Optimizer.kinds.keys()
    for kind, rate in said.items():
        recipe, chosen = assemble(None, {"data.text": (str(text_file),)}, [f"optimizer.kind={kind}"])
        assert recipe.optimizer.learning_rate == rate and f"learning_rate {rate:g}" in chosen


def test_a_trained_model_gets_a_rate_that_suits_what_is_tuned(tmp_path: Path, text_file: Path) -> None:
    """A tenth of a new model's, half with an adapter; from every optimizer, a recipe too, and said with why."""
    for name in ("llama-tiny", "bert-tiny"):
        tokenizer = train_tokenizer("bytes", text_file.read_text(), None)
        spec = archetype.load_spec(name)
        LanguageModel(spec, build(spec), tokenizer, special={}).save(tmp_path / name)
        pretrained = open_pretrained(tmp_path / name)
        for kind, rate in {"adamw": 6e-4, "muon": 6e-4, "lion": 6e-5, "adafactor": 1e-3, "sgd": 1e-2}.items():
            (tmp_path / "recipe.yaml").write_text(f"optimizer: {{kind: {kind}}}\nsteps: 9\n")
            for file, adapter in itertools.product((None, tmp_path / "recipe.yaml"), (None, "lora", "dora")):
                fields = {"data.text": (str(text_file),), "adapter.kind": adapter, "optimizer.kind": kind}
                further, chosen = assemble(file, fields, pretrained=pretrained)
                tuned = further.optimizer.learning_rate
                assert tuned == pytest.approx(rate * (5 if adapter else 1), rel=0.1), (name, kind, adapter)
                what = f"a {adapter} adapter: 0.5" if adapter else "fine-tuning: 0.1"
                why = "width 64" if kind in ("adamw", "muon", "lion") else f"the default of {kind}"
                assert f"learning_rate {tuned:g} ({what} of the rate for random weights, by {why})" in chosen
                said, chosen = assemble(file, fields, ["optimizer.learning_rate=0.5"], pretrained=pretrained)
                assert said.optimizer.learning_rate == 0.5 and "learning_rate" not in chosen
    (tmp_path / "labelled.csv").write_text("text,label\na,b\nc,d\n")
    labelled = {"data.kind": "labelled_text", "data.examples": (str(tmp_path / "labelled.csv"),)}
    assert assemble(None, labelled, pretrained=pretrained)[0].optimizer.learning_rate == 6e-4
    assert assemble(tmp_path / "recipe.yaml", labelled)[0].optimizer.learning_rate == 0.1  # a recipe's own, as ever


def test_the_rate_is_that_of_the_edited_model(text_file: Path) -> None:
    wide, chosen = assemble(None, {"data.text": (str(text_file),)}, ["spec.d_model=128"])
    assert wide.optimizer.learning_rate == 0.003 and "learning_rate 0.003 (width 128)" in chosen


def losses_on_own_text(folder: Path, text: Path, preset: str, tuned: list[str], **rest: Any) -> dict[str, float]:
    """Held-out losses: of a run to its end, and of those that go on from it with the rates that are chosen."""
    held_out: dict[str, float] = {}
    for name in ("first", *tuned):

        def remember(event: Event, name: str = name) -> None:
            if isinstance(event, Evaluated):
                held_out[name] = event.evaluation.loss

        how: dict[str, Any] = {"start_from": folder / "first", "overrides": name.split()}
        how = {"tokenizer": "bytes", "spec": preset} if name == "first" else how
        archetype.train(folder / name, text, on_event=remember, **how, **rest)
    return held_out


def test_a_run_that_goes_on_with_its_own_text_ends_no_worse(tmp_path: Path, text_file: Path) -> None:
    tuned = ["seed=1", "adapter.kind=lora"]
    losses = losses_on_own_text(tmp_path, text_file, "llama-tiny", tuned, batch_size=4, sequence_length=16, steps=40)
    assert len(losses) == 3 and all(loss <= losses["first"] for loss in losses.values()), losses


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["gpt2-tiny", "mamba-tiny", "qwen3-tiny", "gemma3-tiny", "mixtral-tiny"])
def test_a_run_of_any_kind_that_goes_on_with_its_own_text_ends_no_worse(
    preset: str, tmp_path: Path, shared: Path
) -> None:
    text = (shared / "tinyshakespeare" / "input.txt").read_text()[:100_000]
    (tmp_path / "text.txt").write_text(text)
    targets = "in_proj,out_proj" if preset == "mamba-tiny" else "q,v"  # which has no queries
    tuned = ["seed=1", *(f"adapter.kind={kind} adapter.targets=[{targets}]" for kind in ("lora", "dora"))]
    tuned += [f"optimizer.kind={kind}" for kind in Optimizer.kinds if kind != "adamw"]
    sizes = {"batch_size": 8, "sequence_length": 64, "steps": 300}
    losses = losses_on_own_text(tmp_path, tmp_path / "text.txt", preset, tuned, **sizes)
    assert all(loss <= losses["first"] + 0.005 for loss in losses.values()), losses


def test_tokens_are_those_that_are_predicted(tmp_path: Path, recipe: Recipe) -> None:
    """Of a text all, of masked ones the masked, of labelled texts one each; padding never."""
    lines = [json.dumps({"text": "a b c " * (1 + number % 7), "label": number % 2}) for number in range(60)]
    (tmp_path / "labelled.jsonl").write_text("\n".join(lines))
    encoder = {"spec": "bert-tiny", "sequence_length": 32, "batch_size": 8}
    texts = {"data": recipe.data.dump() | {"tokenizer": "bytes"}}
    labelled = {"data": {"kind": "labelled_text", "examples": [str(tmp_path / "labelled.jsonl")], "tokenizer": "bytes"}}
    for number, (data, tokens) in enumerate(((texts, 500), (labelled, 100))):
        state = start(tmp_path / f"{number}", Recipe.parse(encoder | data), CPU, budget=Budget(tokens=tokens))
        seen = [state.objective.num_targets(state.objective.batch(step)) for step in range(state.recipe.steps + 1)]
        assert sum(seen[:-1]) <= tokens < sum(seen)
        assert predictions_of(state.objective, state.recipe.steps) == sum(seen[:-1])
    many = steps_that_predict(state.objective, 8 * 10_000)  # beyond those that are counted: by their mean
    assert many == 10_000
