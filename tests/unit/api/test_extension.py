"""Parts from outside: registered without a fork, then read, counted, built and decoded with as all others."""

import hashlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import archetype
from archetype import spec
from archetype.api import exporting
from archetype.api.extension import load_extension, register
from archetype.apps.cli.made_with import model_hash
from archetype.errors import ArchetypeError, ChangedExtension, CheckpointError, SpecError
from archetype.inspection.attention import attention_steps
from archetype.models.block.module import PreNormBlock
from archetype.nn.context import ForwardContext
from archetype.nn.layer_state import LayerState
from archetype.nn.place import Place
from archetype.nn.registry import module_class
from archetype.nn.selection import Choice, KeySelector
from archetype.parts.position.module import ScoreBias
from archetype.roles.pattern import MaskContext, PatternRule
from archetype.runs.extensions import FILE, check_extensions, write_extensions
from archetype.spec.extensions import extensions_of, source_of
from archetype.studies.store import RunRequest
from archetype.training.loop import run
from archetype.training.recipe import Recipe
from archetype.training.setup import resume, start
from tests.helpers import registered
from tests.helpers.inspected import inspection, tracer
from tests.helpers.passes import forward_step
from tests.helpers.weights import distance, randomize

LINEAR_ATTENTION = Path(__file__).parents[2] / "helpers" / "linear_attention.py"
EXACT = 1e-5


@pytest.fixture(autouse=True)
def registries_as_before() -> Iterator[None]:
    """What a test registers is gone after it."""
    with registered.registries_as_before():
        yield


def with_mixer(**mixer: Any) -> spec.ModelSpec:
    data = archetype.load_spec("llama-tiny").dump()
    data["layers"][0]["block"]["mixer"] = mixer
    return archetype.load_spec(data)


def linear_attention() -> spec.ModelSpec:
    load_extension(LINEAR_ATTENTION)
    return with_mixer(kind="gated_linear_attention", num_heads=4)


def test_a_mixer_of_a_file_is_counted_as_it_is_built() -> None:
    model = linear_attention()
    built, report = archetype.build(model), archetype.cost_report(model, batch=2, length=16)
    assert report.parameters["total"] == sum(p.numel() for p in built.parameters())
    boxes = archetype.draw(model, batch=2, length=16).scene.boxes
    assert sum(box.cost.flops for box in boxes) == report.flops["forward"]
    assert sum(box.id.startswith("blocks.*.mixer.") for box in boxes) == 1  # nothing says how it is drawn
    assert report.flops["forward"] > report.flops["prefill"] > report.flops["decode"] > 0
    assert report.state["bytes"] == built.new_state(2, 16, torch.bfloat16).nbytes
    assert report.memory["training_peak"] > report.memory["weights"] > 0
    assert "gated_linear_attention" in json.dumps(spec.json_schema())
    assert spec.parse(model.dump()) == model


def test_counting_a_mixer_of_a_file_leaves_other_threads_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    served, hooked = nn.Linear(4, 4), []

    def serve() -> None:  # in another thread of a server, while the first one counts
        hooked.append(bool(served(torch.zeros(1, 4))._backward_hooks))

    model = linear_attention()
    module = module_class(next(iter(model.layers)).mixer)
    forward = module.forward

    def forward_while_serving(self: nn.Module, *arguments: Any) -> Any:
        thread = threading.Thread(target=serve)
        thread.start()
        thread.join()
        return forward(self, *arguments)

    monkeypatch.setattr(module, "forward", forward_while_serving)
    assert archetype.cost_report(model, length=16).flops["forward"] > 0
    assert archetype.cost_report(model, length=16).memory["training_peak"] > 0
    assert len(hooked) > 1 and not any(hooked)


def test_a_mixer_of_a_file_is_looked_at_and_changed() -> None:
    """Its input, output and state need nothing from it."""
    model = randomize(archetype.build(linear_attention()))
    shown = inspection(model)
    assert shown.max_logit_difference == 0.0
    assert {"lens", "residual", "recurrent", "attribution"} < set(shown.views)
    (states, *_) = (one for one in shown.recurrent().series if one.name == "norm of matrix")
    assert states.path == "blocks.0.mixer" and states.values.shape == (9,) and states.values.min() > 0
    without = tracer(model).ablate("blocks.0.mixer").run()
    assert torch.equal(without["blocks.0.mixer.out"], torch.zeros_like(without["blocks.0.mixer.in"]))
    assert shown.trace.logits is not None and not torch.equal(without.logits, shown.trace.logits)  # type: ignore[arg-type]


class Scaled(spec.Norm):
    kind: Literal["scaled"] = "scaled"


class ScaledModule(nn.Module):
    def __init__(self, norm: Scaled, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(features))

    def forward(self, x: Tensor, context: ForwardContext | None = None) -> Tensor:
        return x * self.weight


class Squared(spec.FeedForward):
    kind: Literal["squared"] = "squared"


class SquaredModule(nn.Module):
    def __init__(self, feedforward: Squared, place: Place) -> None:
        super().__init__()
        self.up = nn.Linear(place.d_model, place.d_model, bias=False)

    def forward(self, x: Tensor, context: ForwardContext, state: LayerState | None = None) -> Tensor:
        y: Tensor = self.up(x).square()
        return y


class Ends(spec.Wiring):
    kind: Literal["ends"] = "ends"
    norm: spec.Norm = spec.RMSNorm()


class Even(spec.Pattern):
    kind: Literal["even"] = "even"


class EvenRule(PatternRule[Even]):
    def rule(self, i: Any, j: Any, context: MaskContext) -> Any:
        return (i - j) % 2 == 0


class Slope(spec.MixerPosition):
    kind: Literal["slope"] = "slope"


class SlopeModule(ScoreBias):
    def __init__(self, position: Slope, sizes: spec.AttentionSizes) -> None:
        super().__init__()
        self.slopes = nn.Parameter(torch.empty(sizes.num_heads))

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        return -self.slopes[:, None, None] * (queries[:, None, :, None] - keys[:, None, None, :]).abs()


class Index(spec.EmbeddingPosition):
    kind: Literal["numbered"] = "numbered"


class IndexModule(nn.Module):
    def __init__(self, position: Index, context_length: int, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model

    def forward(self, positions: Tensor) -> Tensor:
        return positions[..., None].expand(*positions.shape, self.d_model) / 100


def test_every_role_is_open() -> None:
    register(Scaled, module=ScaledModule)
    register(Squared, module=SquaredModule)
    register(Ends, module=PreNormBlock)
    register(Even, rule=EvenRule)
    register(Slope, module=SlopeModule)
    register(Index, module=IndexModule)
    layer = {
        "wiring": {"kind": "ends"},
        "mixer": {"kind": "attention", "num_heads": 2, "position": {"kind": "slope"}, "pattern": {"kind": "even"}},
        "feedforward": {"kind": "squared"},
    }
    model = archetype.load_spec(
        {"vocab_size": 32, "context_length": 24, "d_model": 8, "embedding": {"position": {"kind": "numbered"}}}
        | {"layers": [{"repeat": 2, "block": layer}], "final_norm": {"kind": "scaled"}}
    )
    built = randomize(archetype.build(model, dtype=torch.float64)).eval()
    report = archetype.cost_report(model, batch=1, length=10)
    assert report.parameters["total"] == sum(p.numel() for p in built.parameters())
    assert report.parameters["total"] == sum(box.cost.parameters for box in archetype.draw(model).scene.boxes)
    tokens = torch.arange(10)[None]
    whole, state = built(tokens).logits, built.new_state(1, 24)
    first, state = forward_step(built, tokens[:, :4], state)
    rest, state = forward_step(built, tokens[:, 4:], state)
    assert distance(torch.cat((first, rest), 1), whole) < EXACT
    changed = built(tokens.index_fill(1, torch.tensor([8]), 31)).logits  # odd distances see nothing of each other
    assert distance(changed[:, 9], whole[:, 9]) < EXACT < distance(changed[:, 8], whole[:, 8])
    shown = inspection(built)
    assert shown.max_logit_difference == 0.0 and not shown.residual().shares["feedforward"].isnan().any()
    steps = attention_steps(shown.trace, "blocks.1.mixer")
    heads = shown.trace["blocks.1.mixer.heads"]
    assert distance(steps.mixed, heads) < EXACT and (steps.weights[..., 1:, 0][..., ::2] == 0).all()
    with pytest.raises(SpecError, match="the last norm, ScaledModule, cannot be split into parts"):
        shown.attribution()
    assert distance(built.blocks[0].mixer.score_bias.slopes, built.blocks[1].mixer.score_bias.slopes) > EXACT


class EverySecond(spec.KeySelection):
    kind: Literal["every_second"] = "every_second"


class EverySecondModule(KeySelector):
    def __init__(self, selection: EverySecond, place: Place, query_features: int) -> None:
        super().__init__()

    def forward(
        self, x: Tensor, queries: Tensor, allowed: Tensor, context: ForwardContext, state: LayerState | None = None
    ) -> Choice:
        return Choice(allowed & (torch.arange(allowed.shape[3], device=x.device) % 2 == 0))


@pytest.mark.parametrize("latent", [False, True])
def test_a_choice_of_keys_from_outside_is_computed_counted_and_drawn(latent: bool) -> None:
    register(EverySecond, module=EverySecondModule)
    mixer: dict[str, Any] = {"kind": "attention", "num_heads": 4}
    if latent:
        sizes = {"kv_lora_rank": 8, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5}
        mixer |= {"kind": "latent", **sizes}
    model = with_mixer(**mixer, index={"kind": "every_second"})
    assert spec.parse(model.dump()) == model and "every_second" in json.dumps(spec.json_schema())
    built, report = randomize(archetype.build(model, dtype=torch.float64)), archetype.cost_report(model, 2, 12)
    assert report.parameters["total"] == sum(p.numel() for p in built.parameters())
    assert "Every second" in {container.label for container in archetype.draw(model).scene.containers}
    tokens = torch.arange(12)[None]
    whole, state = built(tokens).logits, built.new_state(1, 24)
    for piece, expected in zip(tokens.split((4, *[1] * 8), 1), whole.split((4, *[1] * 8), 1), strict=True):
        logits, state = forward_step(built, piece, state)
        assert distance(logits, expected) < EXACT
    module, x = built.blocks[0].mixer, torch.randn(1, 6, model.d_model, dtype=torch.float64)
    y, context = module(x, ForwardContext.of(x)), ForwardContext.of(x)
    odd = module(x.index_fill(1, torch.tensor([3]), 9.0), context)  # no other position sees it
    assert distance(odd[:, 4:], y[:, 4:]) < EXACT < distance(odd[:, 3], y[:, 3])


@pytest.mark.parametrize(
    ("cause", "add"),
    [
        ("a part of a specification needs a module", lambda: register(Scaled)),
        ("a pattern needs a rule", lambda: register(Even)),
        (
            "kind 'rms' of Norm is taken by archetype.parts.norm.spec.RMSNorm",
            lambda: register(taken(), module=ScaledModule),
        ),
        ("is not a part", lambda: register(nameless(), module=ScaledModule)),
    ],
)
def test_what_cannot_be_registered_is_refused(cause: str, add: Any) -> None:
    with pytest.raises(SpecError, match=cause):
        add()


def taken() -> type[spec.Norm]:
    class Another(spec.Norm):
        kind: Literal["rms"] = "rms"

    return Another


def nameless() -> type[spec.Norm]:
    class Nameless(spec.Norm):
        eps: float = 1.0

    return Nameless


@pytest.mark.parametrize(
    ("text", "line", "cause"),
    [
        ("import archetype\n\n1 / 0\n", 3, "ZeroDivisionError: division by zero; fix the extension"),
        ("x = 1\nx =\n", 2, "SyntaxError: invalid syntax"),
        ("from archetype import missing\n", 1, "ImportError: cannot import name 'missing'"),
    ],
)
def test_a_file_that_fails_is_one_line_with_its_place(text: str, line: int, cause: str, tmp_path: Path) -> None:
    file = tmp_path / "parts.py"
    file.write_text(text)
    with pytest.raises(ArchetypeError) as caught:
        load_extension(file)
    assert str(caught.value).startswith(f"{file}:{line}: {cause}")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="there is no such file"):
        load_extension(tmp_path / "parts.py")


def test_a_folder_says_which_extension_it_needs_and_loads_none(tmp_path: Path) -> None:
    model = linear_attention()
    (extension,) = extensions_of([model])
    assert extension.name == "linear_attention.py" and extension.kinds == ("Mixer.gated_linear_attention",)
    assert len(extension.sha256) == 64
    write_extensions(tmp_path, [model, None])
    check_extensions(tmp_path)
    del spec.Mixer.kinds["gated_linear_attention"]
    with pytest.raises(CheckpointError) as caught:
        check_extensions(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: needs Mixer.gated_linear_attention of the extension linear_attention.py"
        f" (sha256 {extension.sha256[:12]}...), which is not loaded; pass --extension linear_attention.py if you trust"
        " that file"
    )
    assert "gated_linear_attention" not in spec.Mixer.kinds
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(CheckpointError, match="is not a list of extensions"):
        check_extensions(tmp_path)


def test_a_model_without_parts_from_outside_records_nothing(tmp_path: Path) -> None:
    write_extensions(tmp_path, [archetype.load_spec("llama-tiny")])
    assert not (tmp_path / FILE).exists()
    check_extensions(tmp_path)


def edited_extension(tmp_path: Path) -> Path:
    """A copy of the extension, which a test may edit."""
    file = tmp_path / "linear_attention.py"
    file.write_text(LINEAR_ATTENTION.read_text())
    load_extension(file)
    return file


@pytest.mark.filterwarnings("error::archetype.errors.ChangedExtension")
def test_an_edited_extension_is_said_and_refused_where_a_run_goes_on(tmp_path: Path) -> None:
    file, cpu = edited_extension(tmp_path), torch.device("cpu")
    (tmp_path / "text.txt").write_text("so it is and so it was " * 60)
    model = with_mixer(kind="gated_linear_attention", num_heads=4)
    fields = {"spec": model.dump(), "data": {"text": [str(tmp_path / "text.txt")], "tokenizer": "bytes"}}
    rest = {"batch_size": 2, "sequence_length": 16, "steps": 4, "evaluate_every": 2, "checkpoint_every": 2}
    recipe = Recipe.parse(fields | rest)
    run(start(tmp_path / "run", recipe, cpu), lambda event: None)
    lm = archetype.load(tmp_path / "run")
    exporting.export(lm, tmp_path / "own", format="archetype-hf")
    key = RunRequest(recipe, "", (), "", "cpu").key
    made_with = model_hash(lm)

    before = extensions_of([model])[0].sha256
    file.write_text(file.read_text() + "# another thought\n")
    assert extensions_of([model])[0].sha256 == before  # what runs is what was loaded
    load_extension(file)
    after = extensions_of([model])[0].sha256
    change = (
        f"the extension linear_attention.py was edited (sha256 {before[:12]}... before, sha256 {after[:12]}... now)"
    )
    for folder, place in ((tmp_path / "run", tmp_path / "run"), (tmp_path / "run" / "best", tmp_path / "run" / "best"),
                          (tmp_path / "own", "extensions")):  # fmt: skip
        with pytest.warns(ChangedExtension) as said:
            assert archetype.load(folder).spec.dump() == model.dump() | {"name": archetype.load(folder).spec.name}
        assert {str(one.message) for one in said} == {f"{place}: {change}: what it computes may differ"}
    assert RunRequest(recipe, "", (), "", "cpu").key != key  # a study makes the run anew
    assert model_hash(lm) != made_with  # and --output goes on with another model
    with pytest.raises(CheckpointError) as refused:
        resume(tmp_path / "run", cpu, steps=6)
    assert str(refused.value) == f"{tmp_path / 'run'}: {change}; restore it, or pass --allow-changes"
    with pytest.warns(ChangedExtension):
        state = resume(tmp_path / "run", cpu, steps=8, allow_changes=True)
    run(state, lambda event: None)
    archetype.load(tmp_path / "run")  # it has been told
    archetype.load(tmp_path / "run" / "best")
    resume(tmp_path / "run", cpu)


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    text = "from typing import Literal\nimport archetype\nfrom archetype import spec\n"
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        kind = f"class {folder.upper()}(spec.Norm):\n    kind: Literal['{folder}'] = '{folder}'\n"
        module = f"archetype.register({folder.upper()}, module=archetype.parts.norm.module.RMSNorm)\n"
        file = tmp_path / folder / "parts.py"
        file.write_text(f"{text}import archetype.parts.norm.module\n{kind}{module}")
        load_extension(file)
    sources = [source_of(spec.Norm.kinds[kind]) for kind in "ab"]
    assert [one.sha256 for one in sources] == [
        hashlib.sha256((tmp_path / folder / "parts.py").read_bytes()).hexdigest() for folder in "ab"
    ]
