"""Of any specification: a traced pass is the plain one, and every view is what the model itself computes."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from archetype import spec
from archetype.errors import SpecError
from archetype.families import preset
from archetype.inspection.attention import attention_paths, attention_steps
from archetype.inspection.attribution import attribution_view
from archetype.inspection.inspection import VIEWS
from archetype.inspection.lens import answering_stack, read_out, residual_names
from archetype.inspection.names import SharedBlocks, activation_shapes, layers, module_at, stacks
from archetype.inspection.residual import added_by, output_scale
from archetype.inspection.trace import Trace, Tracer
from archetype.legend import LEGEND
from archetype.models.build import Model, build
from archetype.nn.registry import module_class
from archetype.parts.attention.cross import CrossAttention
from archetype.parts.attention.projections import MultiHeadProjection
from archetype.parts.compressed_attention.module import CompressedAttention
from archetype.parts.latent_attention.module import LatentAttention
from archetype.parts.native_sparse_attention.module import NativeSparseAttention
from tests.helpers.combinations import FEEDFORWARDS, MIXERS, combined
from tests.helpers.inspected import inspection, tracer
from tests.helpers.specs import DECODERS
from tests.helpers.weights import distance, randomize
from tests.invariants.test_random_specifications import of

EXACT = 1e-9  # of float64


def plain(model: Model, trace: Trace) -> Tensor:
    """What a pass without a trace gives: logits, or the hidden vectors of a model without a head."""
    with torch.no_grad():
        output = model(**trace.inputs.arguments)
    result: Tensor = output.hidden if output.logits is None else output.logits
    return result


def traced(tracer: Tracer, model: Model) -> Tensor:
    """The same of a traced pass."""
    trace = tracer.run()
    if trace.logits is not None:
        return trace.logits
    (stack,) = stacks(model)
    return trace[f"{stack}.final_norm.out".lstrip(".")]


def shapes_are_those_declared(trace: Trace) -> None:
    """Each letter of a probe's shape is one size throughout its part."""
    shapes = activation_shapes(trace.model)
    for name, x in trace.activations.items():
        declared = shapes[name.partition(":")[0]].split()
        if declared[0] == "...":
            declared = [*["rows"] * (x.dim() - len(declared) + 1), *declared[1:]]
        if declared[-1].startswith("*"):
            declared = [*declared[:-1], *["channels"] * (x.dim() - len(declared) + 1)]
        assert len(declared) == x.dim(), (name, shapes[name], x.shape)
        for letter, size in zip(declared, x.shape, strict=True):
            is_known = letter in LEGEND or set(letter) <= LEGEND.keys() or len(letter) > 3  # a product, a word
            assert is_known or int(letter) == size, (name, letter)


def maps_times_values_are_outputs(trace: Trace) -> None:
    """Through the part's gate and output projection."""
    for path in attention_paths(trace):
        module, y = module_at(trace.model, path), attention_steps(trace, path).mixed
        if isinstance(module, CompressedAttention | NativeSparseAttention):
            continue  # the view leaves out the pooled keys, which have the rest of the weight, or the other branches
        if isinstance(module, LatentAttention):
            y = module.o(module.apply_gate(y, trace[f"{path}.in"]).transpose(1, 2).flatten(2))
        else:
            assert isinstance(module, MultiHeadProjection)
            difference = getattr(module, "differential", None)
            y = y if difference is None else difference(y)
            y = module.merge_heads(module.normalize_heads(module.apply_gate(y, trace[f"{path}.in"])))
        assert distance(y, trace[f"{path}.out"]) < EXACT, path


def lens_ends_in_the_logits(trace: Trace) -> None:
    """To the bit."""
    if trace.logits is None or not stacks(trace.model):
        return
    names = [*residual_names(trace, answering_stack(trace)).values()]
    last = read_out(trace, trace[names[-1]])
    assert torch.equal(last if trace.logits.dim() == 3 else last[:, 0], trace.logits)


def clean_into_itself_changes_nothing(model: Model, trace: Trace) -> None:
    """All activations that are numbers, each into its own place: at once, and at one position."""
    expected = plain(model, trace)
    whole, one = tracer(model, rows=2), tracer(model, rows=2)
    for name, x in trace.activations.items():
        whole.set(name, x)
        if x.dim() > 2 and not name.endswith((".k_rope", ".latent")):
            one.set(name, lambda x: x.clone(), positions=0)
    assert torch.equal(traced(whole, model), expected)
    assert torch.equal(traced(one, model), expected)


def ablated_heads_are_zeroed_slices(model: Model, trace: Trace) -> None:
    """Of one attention, in all layers that share it, head 0: as if its columns of `o` were zero."""
    for path in attention_paths(trace)[-1:]:
        changed, own = copy.deepcopy(model), SharedBlocks(model).module_path(path)
        module = changed.get_submodule(own)
        width = trace[f"{path}.heads"].shape[-1]
        with torch.no_grad():
            if isinstance(module, CompressedAttention):  # a matrix for each group of heads, one below the other
                module.o_down.weight[: module.spec.group_rank, :width] = 0
            else:
                module.o.weight[:, :width] = 0
        ours = tracer(model, rows=2)
        for name in SharedBlocks(model).names(own):
            ours.ablate(name, heads=0)
        assert torch.equal(traced(ours, model), plain(changed, trace)), path


def streams_are_sums(trace: Trace) -> None:
    """The embedding, all that is added, and what is read again are the final stream, where the wiring only adds."""
    for path, stack in stacks(trace.model).items():
        names = [name.removesuffix(".out") for name in [*residual_names(trace, path).values()][1:]]
        parts = [added_by(trace, name) for name in names]
        for name, part in zip(names, parts, strict=True):
            block = module_at(trace.model, name)
            is_sum = type(block).__name__ not in ("PostNormBlock", "PlainBlock", "InterpolatedBlock", "LaurelBlock")
            assert (part is not None) == (is_sum and block.adds_up), name
        if all(part is not None for part in parts) and not (stack.passes or stack.of_unit_length):
            total = trace[f"{names[0]}.in"]
            for index, (name, part) in enumerate(zip(names, parts, strict=True)):
                if (source := stack.reinjected.get(index)) is not None:
                    total = total + trace[f"{names[source]}.in"]
                total = total * output_scale(module_at(trace.model, name)) + sum((part or {}).values())
            assert distance(total, trace[f"{names[-1]}.out"]) < EXACT


def attributions_sum_to_logits(trace: Trace) -> None:
    """Before a softcap, with each layer in turn split into heads; or the reason is one line."""
    head = getattr(trace.model, "lm_head", None)
    for layer in list(layers(trace.model))[:2]:
        try:
            view = attribution_view(trace, str, token=3, position=2, layer=layer)
        except SpecError as error:
            assert len(str(error)) < 300
            return
        cap = head.spec.softcap
        logit = view.logit if cap is None else cap * math.tanh(view.logit / cap)
        size = float(trace.logits.abs().max()) + sum(abs(part.logit) for part in view.contributions)
        assert abs(logit - float(trace.logits[0, 2, 3])) < 1e-5 * size


def holds(drawn: spec.ModelSpec) -> None:
    """All of the above, of one specification."""
    model = build(drawn, dtype=torch.float64)
    randomize(model)
    trace = tracer(model, rows=2).run()
    assert torch.equal(traced(tracer(model, rows=2), model), plain(model, trace))
    shapes_are_those_declared(trace)
    maps_times_values_are_outputs(trace)
    lens_ends_in_the_logits(trace)
    clean_into_itself_changes_nothing(model, trace)
    ablated_heads_are_zeroed_slices(model, trace)
    streams_are_sums(trace)
    attributions_sum_to_logits(trace)
    shown = inspection(model)
    assert shown.max_logit_difference == 0.0
    assert shown.table().rows and shown.tensors()
    assert shown.record()["views"] or getattr(drawn, "hidden", None) == ()  # an n-gram model of one table has none


@of(12)
def test_some_specifications_are_seen_as_they_compute(drawn: spec.ModelSpec) -> None:
    holds(drawn)


def test_a_shifted_head_is_seen_as_it_computes() -> None:
    """Dream's logits of a position come from the vector before it."""
    holds(preset("llada-tiny").replace(head=spec.MaskedLogitsHead(shifted=True)))


@pytest.mark.slow
@of(400)
def test_four_hundred_specifications_are_seen_as_they_compute(drawn: spec.ModelSpec) -> None:
    holds(drawn)


def test_every_mixer_and_feedforward_says_what_can_be_looked_at() -> None:
    """Each of its probes is offered by a pass."""
    contents = {
        **{kind: {"mixer": kind, "feedforward": "none"} for kind in ("attention", *MIXERS)},
        **{kind: {"feedforward": kind} for kind in FEEDFORWARDS if kind != "none"},
    }
    covered: set[type[nn.Module]] = {CrossAttention}
    for kind, combination in contents.items():
        model = build(combined(combination))
        part = "mixer" if kind in ("attention", *MIXERS) else "feedforward"
        trace, module = tracer(randomize(model)).run(), model.blocks[0].get_submodule(part)
        names = {name for name in module.probes if not name.endswith(("_global", "position_query"))}
        assert {name for name in names if f"blocks.0.{part}.{name}" in trace} == names, kind
        covered.add(type(module))
    model = build(preset("deberta-v3-tiny"))
    trace, mixer = tracer(randomize(model)).run(), model.blocks[0].mixer
    assert {name for name in mixer.probes if f"blocks.0.mixer.{name}" in trace} == set(mixer.probes)
    covered.add(type(mixer))
    model = build(DECODERS["per-layer inputs"])
    assert "blocks.1.feedforward.hidden" in tracer(randomize(model)).run()
    covered.add(type(model.blocks[1].feedforward))
    model = build(DECODERS["n-gram memory"])
    trace = tracer(randomize(model)).run()
    assert all(f"blocks.0.feedforward.{name}" in trace for name in ("gate", "value"))
    covered.add(type(model.blocks[0].feedforward))
    model = build(DECODERS["n-gram embedding"])
    trace = tracer(randomize(model)).run()
    assert "blocks.0.feedforward.rows" in trace
    covered.add(type(model.blocks[0].feedforward))
    for role in (spec.Mixer, spec.FeedForward):
        for kind, cls in role.kinds.items():
            if not cls.is_absent and cls.__module__.startswith("archetype."):
                module = module_class(cls.model_construct())
                assert "probes" in dir(module) and module in covered, kind
    assert set(VIEWS) >= {"attention", "lens", "residual", "experts", "recurrent", "attribution"}
