"""Learning from a teacher: each term of the loss is its formula, and nothing else changes what a run computes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from archetype.api.language_model import LanguageModel
from archetype.api.loading import load
from archetype.api.pretrained import open_pretrained, open_teacher
from archetype.errors import ArchetypeError, SpecError
from archetype.models.build import Model, build
from archetype.nn.parameter_names import TRAINING_ONLY
from archetype.spec.edit import assign
from archetype.surgery.report import new_tensors
from archetype.tokenizers import train_tokenizer
from archetype.training import chunked_loss
from archetype.training.datasets import TextData
from archetype.training.loop import run, take_step
from archetype.training.memory import StepMemoryCost, step_memory
from archetype.training.objectives import base
from archetype.training.objectives.base import IGNORED
from archetype.training.optimizers import SGD, optimizer_tensors
from archetype.training.plan import plan
from archetype.training.recipe import Recipe
from archetype.training.report_page import write_report
from archetype.training.resolve import resolve_recipe
from archetype.training.setup import resume, start
from archetype.training.stages import Stage
from archetype.training.state import TrainState
from archetype.training.teacher.divergence import Classes, divergence_and_gradient, in_classes
from archetype.training.teacher.loss import TeacherLoss
from archetype.training.teacher.spec import Teacher
from tests.helpers.live_bytes import LiveBytes
from tests.helpers.recipes import decoder
from tests.helpers.weights import randomize
from tests.unit.training.test_resume import assert_equal_states, measured, steps

CPU = torch.device("cpu")
V = 256
SMALL = json.loads(json.dumps(decoder()).replace('"dropout": 0.1', '"dropout": 0.0')) | {"vocab_size": V, "d_model": 32}


def model_of(seed: int, **fields: Any) -> Model:
    from archetype import spec

    model = build(spec.parse(SMALL | fields), seed=seed)
    randomize(model, seed)
    return model


def saved(model: Model, folder: Path, texts: list[str] | None = None) -> str:
    tokenizer = train_tokenizer("bytes", "text", None) if texts is None else train_tokenizer("byte_bpe", texts, V + 20)
    LanguageModel(model.spec, model.eval(), tokenizer, special={}).save(folder)
    return str(folder)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(model_of(1), tmp_path_factory.mktemp("teacher") / "run")


@pytest.fixture
def taught(recipe: Recipe, teacher: str, text_file: Path) -> Recipe:
    data = TextData(text=(str(text_file),), tokenizer="bytes")
    return recipe.replace(spec=SMALL, data=data, batch_size=4, steps=6, teacher=Teacher(model=teacher))


def begin(folder: Path, recipe: Recipe, **more: Any) -> TrainState:
    state = start(folder, recipe, CPU, open_teacher=open_teacher, **more)
    if (teaching := state.objective.teacher) is not None and teaching.cache is not None:
        teaching.cache.begin()  # as the loop does
    return state


def weights(state: TrainState) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in state.model.state_dict().items()}


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name in after if not torch.equal(before[name], after[name])}


@pytest.mark.parametrize("k", [None, 1, 5, 12])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_divergence_and_its_gradient_are_the_formulas(k: int | None, temperature: float) -> None:
    generator = torch.Generator().manual_seed(0)
    theirs = 3 * torch.randn(7, 12, generator=generator, dtype=torch.float64)
    z = (3 * torch.randn(7, 12, generator=generator, dtype=torch.float64)).requires_grad_()
    log_p = (theirs / temperature).log_softmax(1)
    classes = Classes(log_p) if k is None else Classes.most_likely(log_p, k)
    nats = (classes.log_p.exp() * (classes.log_p - in_classes((z / temperature).log_softmax(1), classes.ids))).sum(1)
    (expected,) = torch.autograd.grad(nats.sum(), z)
    again, gradient = divergence_and_gradient(z.detach(), classes, temperature)
    torch.testing.assert_close(again, nats.detach())
    torch.testing.assert_close(gradient, expected)
    p, q = log_p.exp(), (z.detach() / temperature).softmax(1)
    if k in (None, 12):
        torch.testing.assert_close(again, (p * (p / q).log()).sum(1))
        torch.testing.assert_close(gradient, (q - p) / temperature)
    else:  # the others as one class: at most the whole divergence, and 0 only if the likely tokens are as likely
        assert bool((again <= (p * (p / q).log()).sum(1) + 1e-12).all() and (again > 0).all())
    itself, none = divergence_and_gradient(theirs.clone(), classes, temperature)
    assert itself.abs().max() < 1e-12 and none.abs().max() < 1e-12


def direct(model: Any, teacher: Any, batch: Any, settings: Teacher) -> Tensor:
    """The loss as written in the literature, over all positions that are predicted."""
    tokens, targets = batch
    rows = targets.flatten() != IGNORED
    own: dict[int, Tensor]
    with model.recording([1, 2]) as own, teacher.recording([1, 2]) as theirs, torch.enable_grad():
        z, (t, loss) = model(tokens).logits.flatten(0, 1)[rows], (settings.temperature, torch.zeros(()))
        with torch.no_grad():
            p = (teacher(tokens).logits.flatten(0, 1)[rows] / t).softmax(1)
    loss = loss + settings.text * nn.functional.cross_entropy(z, targets.flatten()[rows])
    q = (z / t).log_softmax(1)
    loss = loss + settings.logits * t**2 * nn.functional.kl_div(q, p, reduction="batchmean")
    for place in (1, 2):
        y, target = (streams[place].flatten(0, 1)[rows] for streams in (own, theirs))
        y = getattr(model, TRAINING_ONLY)[str(place - 1)](y) if settings.projection else y
        loss = loss + settings.layers / 2 * (y - target).square().mean()
    return loss


class Tokens(base.Objective):
    def batch(self, step: int) -> base.Batch:
        tokens = torch.randint(V, (3, 12), generator=torch.Generator().manual_seed(step))
        return tokens[:, :-1], torch.where(torch.rand(3, 11) < 0.3, IGNORED, tokens[:, 1:])

    def validation_batch(self, index: int) -> base.Batch:
        return self.batch(index)

    def inputs_and_targets(self, batch: base.Batch) -> tuple[dict[str, Tensor], Tensor]:
        return {"tokens": batch[0]}, batch[1]


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    "terms",
    [
        {"logits": 1.0, "temperature": 2.0}, {"logits": 0.7, "top_k": V}, {"logits": 0.0, "layers": 0.5},
        {"logits": 0.0, "text": 0.4}, {"logits": 0.6, "text": 0.4, "layers": 0.5, "temperature": 1.5},
        {"logits": 0.6, "layers": 0.5, "projection": True, "wide": True},
    ],
)  # fmt: skip
def test_each_term_has_the_gradient_of_its_formula(terms: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain and in chunks, where some positions are not predicted."""
    terms = dict(terms)
    model, objective = model_of(2).train(), Tokens()
    teacher = model_of(1, d_model=48) if terms.pop("wide", False) else model_of(1)
    settings = Teacher(model="", **terms)
    objective.teacher = TeacherLoss(settings, teacher, model.spec)
    objective.teacher.install(model)
    batch = objective.batch(0)
    loss = direct(model, teacher, batch, settings)
    expected = gradients(model, loss)
    for rows in (None, 4):
        if rows is not None:
            monkeypatch.setattr(chunked_loss, "chunk_rows", lambda vocab_size, rows=rows: rows)
        output = objective.compute_loss(model, batch)
        assert output.loss.item() == pytest.approx(loss.item(), rel=2e-6)
        assert output.num_targets == int((batch[1] != IGNORED).sum())
        for name, gradient in gradients(model, output.loss).items():
            torch.testing.assert_close(gradient, expected[name], rtol=2e-4, atol=2e-6, msg=f"{name} {rows}")
    assert all(parameter.grad is None for parameter in teacher.parameters())
    # validation measures the text alone
    with torch.no_grad():
        text = objective.compute_loss(model.eval(), batch).loss
        logits = model(batch[0]).logits.flatten(0, 1)
        torch.testing.assert_close(text, nn.functional.cross_entropy(logits, batch[1].flatten()))


def test_a_teacher_equal_to_the_student_changes_nothing(tmp_path: Path, taught: Recipe, teacher: str) -> None:
    same = taught.replace(optimizer=SGD(learning_rate=1.0, momentum=0.0), steps=2)
    state = begin(tmp_path / "same", same, pretrained=open_pretrained(Path(teacher)))
    before, first = weights(state), take_step(state)
    assert abs(first.loss) < 1e-6 and first.gradient_norm < 1e-5
    assert all(torch.allclose(before[name], tensor, atol=1e-6) for name, tensor in weights(state).items())
    other = begin(tmp_path / "other", same)
    assert take_step(other).gradient_norm > 1e-2


def test_stored_tokens_give_the_same_losses(tmp_path: Path, taught: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit: without a folder, when it is written, and when it is read and the teacher never runs."""
    assert taught.teacher is not None
    few = taught.replace(teacher=taught.teacher.replace(top_k=9, text=0.5), micro_batch_size=3, steps=4)
    caching = few.replace(teacher=few.teacher.replace(cache=str(tmp_path / "cache")))  # type: ignore[union-attr]
    expected = [measured(step) for step in steps(begin(tmp_path / "without", few))]
    resolve_recipe(tmp_path / "planned", caching, CPU, open_teacher=open_teacher)
    assert not (tmp_path / "cache").exists()
    assert [measured(step) for step in steps(begin(tmp_path / "written", caching))] == expected
    assert len(list((tmp_path / "cache").glob("*.safetensors"))) == 8
    state = begin(tmp_path / "read", caching)
    monkeypatch.setattr(state.objective.teacher.teacher, "forward", None)  # type: ignore[union-attr]
    assert [measured(step) for step in steps(state)] == expected
    with pytest.raises(SpecError, match=r"teacher\.cache: .* has tokens of another teacher"):
        begin(tmp_path / "other", caching.replace(teacher=caching.teacher.replace(temperature=2.0)))  # type: ignore[union-attr]


def test_stages_train_exactly_what_they_name_and_resume(tmp_path: Path, taught: Recipe) -> None:
    """A layer alone, some tensors, then everything; interrupted in each stage, and at the end of one."""
    assert taught.teacher is not None
    stages = (Stage(steps=2, fit=1), Stage(steps=2, trainable=("blocks.0.mixer",)))
    settings = taught.teacher.replace(layers=0.5, text=0.2, projection=True)
    staged = taught.replace(teacher=settings, stages=stages, ema_decay=0.9)
    state = begin(tmp_path / "whole", staged)
    projections = {name for name in weights(state) if name.startswith(TRAINING_ONLY)}
    assert len(projections) == 2
    expected = []
    for index in range(6):
        before = weights(state)
        step = take_step(state)
        distance = state.objective.compute_loss(state.model, state.objective.batch(index)).loss if index < 2 else 0
        assert index >= 2 or distance < step.loss  # of the same batch, after the step
        expected.append(measured(step))
        moved, moments = changed(before, weights(state)), {name.split(":")[0] for name in _moments(state)}
        if index < 2:
            assert moved == moments == {name for name in before if name.startswith("blocks.1.")}
        elif index < 4:
            assert moved == moments == {name for name in before if name.startswith("blocks.0.mixer.")} | projections
        else:
            assert moved == moments == set(before)
    for interrupted_at in (1, 4):
        folder = tmp_path / f"interrupted at {interrupted_at}"
        first = steps(begin(folder, staged), interrupted_at)
        second = resume(folder, CPU, open_teacher=open_teacher)
        assert [measured(step) for step in first + steps(second)] == expected
        assert_equal_states(second, state)


def _moments(state: TrainState) -> dict[str, Tensor]:
    return optimizer_tensors(state.model, state.optimizer)


def test_a_finished_run_says_its_teacher_and_refuses_another(tmp_path: Path, taught: Recipe, recipe: Recipe) -> None:
    own = saved(model_of(3), tmp_path / "teacher")
    settings = Teacher(model=own, weights="int8", layers=1.0, projection=True)
    folder, stages = tmp_path / "run", (Stage(steps=4, fit=0),)
    events: list[Any] = []
    run(begin(folder, taught.replace(teacher=settings, stages=stages)), events.append)
    assert not any("is too high" in getattr(event, "text", "") for event in events)  # of another stage, another loss
    assert not any(name.startswith(TRAINING_ONLY) for name in load(folder).model.state_dict())
    text = write_report(state_of(folder)).read_text()
    assert f"It learned from {own}; weights of the loss: next-token distribution 1, layer outputs 1." in text
    assert "4 steps of layer 0 alone; then as a whole." in text
    saved_again = model_of(4)
    saved_again.to(torch.float32)
    for file in (tmp_path / "teacher").iterdir():
        if file.is_file():
            file.unlink()
    saved(saved_again, tmp_path / "again")
    for file in (tmp_path / "again").iterdir():
        if file.is_file():
            file.rename(tmp_path / "teacher" / file.name)
    with pytest.raises(ArchetypeError, match=r"teacher\.model: .*/teacher: the weights have changed since this"):
        resume(folder, CPU, steps=9, open_teacher=open_teacher)


def state_of(folder: Path) -> Any:
    from archetype.runs.directory import Run

    return Run(folder)


def test_memory_and_plan_count_the_teacher(tmp_path: Path, taught: Recipe) -> None:
    assert taught.teacher is not None
    plans = {
        name: plan(resolve_recipe(tmp_path / "run", chosen, CPU, open_teacher=open_teacher), CPU)
        for name, chosen in (
            ("without", taught.replace(teacher=None)),
            ("with", taught),
            ("int8", taught.replace(teacher=taught.teacher.replace(weights="int8"))),
        )
    }
    of_weights = sum(tensor.nbytes for tensor in load(taught.teacher.model).model.parameters())
    assert plans["without"].memory.teacher == 0
    assert of_weights < plans["with"].memory.teacher < of_weights + 2**20
    assert plans["with"].memory.peak == plans["without"].memory.peak + plans["with"].memory.teacher
    assert plans["with"].memory.teacher_weights == of_weights
    text = str(plans["with"].table())
    assert "weights, without gradients" in text and "FLOPs of these" in text
    assert "teacher" not in str(plans["without"].table())
    assert plans["with"].teacher_flops == pytest.approx(plans["with"].flops - plans["without"].flops)
    assert plans["int8"].memory.teacher < plans["with"].memory.teacher - of_weights // 3
    assert 1.2 < plans["with"].flops / plans["without"].flops < 1.4  # a third of a step: one pass forward
    # one layer's training state exists at a time
    spec, taught = load(taught.teacher.model).spec, taught.replace(dtype="float32")
    alone = StepMemoryCost(taught.replace(stages=(Stage(steps=3, fit=0), Stage(steps=3, fit=1))), spec).step(4, 16)
    whole = StepMemoryCost(taught, spec).step(4, 16)
    of_block = sum(parameter.numel() for parameter in model_of(0).get_submodule("blocks.0").parameters())
    assert alone.gradients == 4 * of_block and alone.optimizer == 8 * of_block and alone.logits == 0
    assert alone.activations < 0.7 * whole.activations


@pytest.mark.parametrize(
    ("changes", "fields", "stages"),
    [
        ({}, {"layers": 1.0, "text": 0.5}, ()),
        ({"d_model": 320}, {"top_k": 8}, ()),  # a teacher whose pass needs more than the step
        ({}, {}, ({"steps": 6, "fit": 1},)),
    ],
)
def test_the_memory_of_a_taught_step_is_within_a_tenth_of_what_is_measured(
    tmp_path: Path, taught: Recipe, changes: dict[str, Any], fields: dict[str, Any], stages: Any
) -> None:
    place = saved(model_of(1, **changes), tmp_path / "teacher")
    recipe = taught.replace(teacher={"model": place, **fields}, stages=stages, batch_size=128, dtype="float32")
    state = begin(tmp_path / "run", recipe)
    take_step(state)
    teacher = state.objective.teacher
    assert teacher is not None
    modules = (state.model, teacher.teacher)
    held = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    held += [value for values in state.optimizer.state.values() for value in values.values()]
    with LiveBytes(held) as counter:
        take_step(state)
    measured = sum(tensor.untyped_storage().nbytes() for tensor in held) + counter.peak
    planned = step_memory(StepMemoryCost(recipe, state.model.spec), state.objective, 128, 16)
    assert measured == pytest.approx(planned.peak, rel=0.1)


def refused() -> Iterator[tuple[str, dict[str, Any], str]]:
    yield (
        "spec",
        {"layers": 1.0},
        "teacher.layers: the model's layers have outputs of width 32, and the teacher's of 48",
    )
    yield (
        "spec",
        {"layers": 1.0, "projection": True, "matches": [0]},
        "teacher.matches: names 1 layers of the teacher, and the model has 2",
    )
    yield (
        "spec",
        {"layers": 1.0, "projection": True, "matches": [0, 7]},
        "teacher.matches: the teacher has layers 0 to 1; use at least one",
    )
    yield "spec", {"logits": 0.0}, "teacher: all weights are 0, so there is no loss"
    yield "spec", {"cache": "x"}, "teacher.cache: only the most likely tokens are stored; set teacher.top_k"
    yield "spec", {"cache": "x", "top_k": 2, "layers": 1.0}, "teacher.cache: layer outputs are not stored"
    yield "vocabulary", {}, "has a vocabulary of 276 tokens, and the model one of 256; use a teacher with the model's"
    yield "tokenizer", {}, "has other ids for"


@pytest.mark.parametrize(("kind", "fields", "message"), list(refused()))
def test_wrong_teachers_are_refused_before_anything_is_written(
    tmp_path: Path, taught: Recipe, text_file: Path, kind: str, fields: dict[str, Any], message: str
) -> None:
    if kind == "spec":
        other = saved(model_of(5, d_model=48), tmp_path / "teacher")
    else:
        size = V + 20
        other = saved(model_of(5, vocab_size=size), tmp_path / "teacher", [text_file.read_text()])
    if kind == "tokenizer":
        taught = taught.replace(spec=SMALL | {"vocab_size": size})
    with pytest.raises(SpecError) as error:
        begin(tmp_path / "run", taught.replace(teacher={"model": other, **fields}))
    assert message in str(error.value)
    assert not (tmp_path / "run").exists() and not Path("x").exists()


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ({"steps": 1, "trainable": ["new"]}, "stages[0]: the run does not start from a transplanted model"),
        ({"steps": 1, "fit": 2}, "stages[0].fit: no layer of the teacher matches layer 2; use one of 0, 1"),
        ({"steps": 1, "fit": 0, "trainable": ["lm_head"]}, "stages[0].fit: a fitted layer is trained as a whole"),
        ({"steps": 1, "trainable": ["lm_haed"]}, "stages[0].trainable: 'lm_haed' matches no parameter"),
    ],
)
def test_wrong_stages_are_refused(tmp_path: Path, taught: Recipe, stage: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as error:
        begin(tmp_path / "run", taught.replace(stages=[stage]))
    assert str(error.value).startswith(message) and not (tmp_path / "run").exists()


def test_another_specification_is_a_transplant(tmp_path: Path, taught: Recipe, teacher: str) -> None:
    """Its report is shown and kept, and what is new can be trained first."""
    pretrained = open_pretrained(Path(teacher))
    spec = assign(pretrained.model.spec, ["layers[1].mixer={kind: gated_delta_net, num_heads: 2, head_dim: 8}"])
    stages = (Stage(steps=2, fit="new"), Stage(steps=2, trainable=("new",)))
    healed = taught.replace(spec=spec.dump(), stages=stages)
    state = begin(tmp_path / "run", healed, pretrained=pretrained.for_recipe(healed))
    assert any(note.startswith("tensors: ") and " kept" in note and " new" in note for note in state.notes)
    report = json.loads((tmp_path / "run" / "transplant.json").read_text())
    new = {name for name, taken in report["tensors"].items() if taken["how"] == "new"}
    assert new and all(name.startswith("blocks.1.mixer.") for name in new) and report["donor"] == teacher
    assert healed.teacher is not None and healed.teacher.located(report).matches == (0, 1)
    assert [stage.fit for stage in state.recipe.stages] == [1, None]
    assert set(state.recipe.stages[1].trainable or ()) == new
    donor = pretrained.model.state_dict()
    assert all(torch.equal(tensor, donor[name]) for name, tensor in weights(state).items() if "1.mixer" not in name)
    steps(state, 2)
    before = weights(state)
    steps(state, 4)
    assert changed(before, weights(state)) == new
    again = open_pretrained(tmp_path / "run")
    assert set(new_tensors(again.transplant) or ()) == new
