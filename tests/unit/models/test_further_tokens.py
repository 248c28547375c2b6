"""Further tokens: the model is as without them; their losses, gradients, costs and refusals are as the formulas say."""

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from archetype import families, spec
from archetype.checking.construction import is_drawn, parameters_are_counted, round_trip
from archetype.checking.files import export_is_honest, run_keeps_bits
from archetype.checking.gradients import autocast_is_finite, every_parameter_learns
from archetype.checking.subject import Inapplicable, Subject
from archetype.convert.gguf.choice import gguf_of
from archetype.data.corpus import Corpus
from archetype.errors import CheckpointError, SpecError
from archetype.estimate.memory import MemoryCost
from archetype.estimate.report import cost_report
from archetype.models.build import build
from archetype.models.cost import model_cost
from archetype.models.decoder.module import Decoder
from archetype.nn.context import ForwardContext
from archetype.spec import assign
from archetype.training import chunked_loss
from archetype.training.objectives import base
from archetype.training.objectives.base import IGNORED
from archetype.training.objectives.further_tokens import further_targets
from archetype.training.objectives.next_token import NextTokenObjective
from archetype.training.parallel.layout import Parallel
from archetype.training.recipe import Recipe
from tests.unit.cost.test_flops import counted

BASE = families.preset("llama-tiny")
ROWS, LENGTH = 3, 20
FURTHER = {
    "one": "{count: 1}",
    "two, another block": "{count: 2, loss_weight: 0.5, norm: layer, block: {wiring: {kind: post_norm, norm: rms}, "
    "mixer: {kind: attention, num_heads: 2}, feedforward: {kind: mlp, d_ff: 24, activation: relu}}}",
    "experts": "{block: {wiring: {kind: pre_norm, norm: rms}, mixer: gru, feedforward: {kind: experts, "
    "num_experts: 3, experts_per_token: 2, balance_loss: 0.1, expert: {kind: mlp, d_ff: 24, activation: relu}}}}",
}  # fmt: skip


def with_further(name: str, *assignments: str) -> spec.Decoder:
    """The tiny Llama, which predicts further tokens as well."""
    return assign(BASE, [f"further_tokens={FURTHER[name]}", *assignments])  # type: ignore[return-value]


def tokens(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(BASE.vocab_size, (ROWS, length), generator=torch.Generator().manual_seed(0))


def objective() -> NextTokenObjective:
    ids = tokens(400).flatten().int().numpy()
    return NextTokenObjective(Corpus(ids, ids, len(ids), ""), ROWS, LENGTH, seed=0)


@pytest.mark.parametrize("name", FURTHER)
@pytest.mark.parametrize("training", [True, False])
def test_logits_and_weights_are_those_of_the_model_without(name: str, training: bool) -> None:
    plain, model = (build(one, seed=3).train(training) for one in (BASE, with_further(name)))
    outputs = [one(tokens()) for one in (plain, model)]
    assert torch.equal(outputs[0].logits, outputs[1].logits)
    assert torch.equal(plain(tokens(), last_only=True).logits, model(tokens(), last_only=True).logits)
    count = model.spec.further_tokens.count  # type: ignore[union-attr]
    assert [x.shape for x in outputs[1].further] == [outputs[1].hidden.shape] * (count if training else 0)


@pytest.mark.parametrize("name", FURTHER)
def test_it_is_written_counted_drawn_trained_and_saved(name: str) -> None:
    subject = Subject(with_further(name))
    for check in (
        round_trip, parameters_are_counted, is_drawn, autocast_is_finite, every_parameter_learns, run_keeps_bits
    ):  # fmt: skip
        check(subject)
    with pytest.raises(Inapplicable, match="no published format can express it"):
        export_is_honest(subject)


def test_what_a_token_meets_is_as_without() -> None:
    plain, further = (cost_report(one, 2, 24) for one in (BASE, with_further("two, another block")))
    assert further.parameters["active"] == plain.parameters["active"]
    assert further.parameters["total"] > plain.parameters["total"]
    for phase in ("forward", "prefill", "decode"):
        assert further.flops[phase] == plain.flops[phase]
    assert further.state == plain.state


@pytest.mark.parametrize("name", ["one", "two, another block"])
def test_a_training_step_multiplies_what_is_counted(name: str) -> None:
    model, expected = build(with_further(name)).train(), cost_report(with_further(name), ROWS, LENGTH).flops["train"]
    with counted() as counter:
        objective().compute_loss(model, (tokens(LENGTH + 1),)).loss.backward()
    assert counter.get_total_flops() == expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_loss_saves_about_what_is_counted(dtype: str) -> None:
    """Within a twentieth; every storage that autograd keeps, copies of weights among them, parameters apart."""
    for name in ("one", "two, another block"):
        model = build(with_further(name)).train()
        parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        saved: dict[int, torch.Tensor] = {}

        def save(tensor: torch.Tensor, saved: Any = saved, parameters: Any = parameters) -> torch.Tensor:
            if tensor.untyped_storage().data_ptr() not in parameters:
                saved.setdefault(tensor.untyped_storage().data_ptr(), tensor)
            return tensor

        autocast = torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16")
        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor), autocast:
            loss = objective().compute_loss(model, (tokens(LENGTH + 1),))
        assert loss.num_targets == ROWS * LENGTH
        nbytes = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
        memory = MemoryCost(model_cost(with_further(name)), dtype)
        expected = memory.saved_activations(ROWS, LENGTH).saved + memory.cast_weights
        assert expected == pytest.approx(nbytes, rel=0.05), name


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("name", ["one", "two, another block"])
def test_the_loss_is_the_formula(name: str, chunked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cross-entropy of the next tokens, and loss_weight / count times that of each further one over T positions."""
    model, text = build(with_further(name), dtype=torch.float64).train(), tokens(LENGTH + 1)
    if chunked:
        monkeypatch.setattr(base, "LARGE_LOGITS", 0)
        monkeypatch.setattr(chunked_loss, "chunk_rows", lambda vocab_size: 7)
    loss = objective().compute_loss(model, (text,)).loss
    assert isinstance(model, Decoder) and model.further_tokens is not None and model.lm_head is not None
    assert model.spec.further_tokens is not None
    inputs, count = text[:, :-1], model.spec.further_tokens.count
    output = model(inputs)
    expected = cross_entropy(output.logits.flatten(0, 1), text[:, 1:].flatten())
    h, embedded, further = output.hidden, model.embedding.token(inputs), model.further_tokens
    for k in range(1, count + 1):  # position i reads h_i and token i + k, and predicts token i + k + 1
        known = LENGTH - k
        h = h[:, :known]
        joined = torch.cat((further.hidden_norms[k - 1](h), further.embedding_norms[k - 1](embedded[:, k:])), -1)
        context = ForwardContext.of(joined)
        h = further.final_norms[k - 1](further.blocks[k - 1](further.projections[k - 1](joined), context), context)
        logits = model.lm_head(h, model.token_table)
        nats = cross_entropy(logits.flatten(0, 1), text[:, k + 1 :].flatten(), reduction="sum")
        expected = expected + model.spec.further_tokens.loss_weight / count * nats / (ROWS * LENGTH)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)  # of float32, in which losses are computed


def test_the_further_losses_teach_block_embedding_and_head_and_nothing_without_weight() -> None:
    gradients = {}
    for weight in (0.0, 0.3):
        model = build(with_further("one", f"further_tokens.loss_weight={weight}")).train()
        objective().compute_loss(model, (tokens(LENGTH + 1),)).loss.backward()
        gradients[weight] = {name: p.grad for name, p in model.named_parameters()}
    for name, gradient in gradients[0.0].items():
        assert gradient is not None
        assert gradients[0.3][name] is not None and not torch.equal(gradient, gradients[0.3][name]), name  # type: ignore[arg-type]
        assert not name.startswith("further_tokens.") or not gradient.any()


def test_a_batch_in_parts_has_the_loss_of_the_whole() -> None:
    model, text = build(with_further("two, another block"), dtype=torch.float64).train(), tokens(LENGTH + 1)
    whole = objective().compute_loss(model, (text,)).loss
    parts = [objective().compute_loss(model, (row[None],)).loss for row in text]
    torch.testing.assert_close(whole, torch.stack(parts).mean())
    assert objective().compute_loss(model.eval(), (text,)).loss < whole  # held-out losses are of the next token alone


def test_padding_and_other_documents_are_not_predicted() -> None:
    targets = torch.tensor([[1, 2, IGNORED, 4, 5, IGNORED], [6, 7, 8, 9, 10, 11]])
    one, seven = further_targets(targets, 7)[0], further_targets(targets, 7)[6]
    assert one.tolist() == [[2, IGNORED, 4, 5, IGNORED, IGNORED], [7, 8, 9, 10, 11, IGNORED]]
    assert seven.eq(IGNORED).all()
    documents = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 2]])
    _, two = further_targets(targets, 2, documents)
    assert two.tolist() == [[IGNORED, IGNORED, IGNORED, IGNORED, IGNORED, IGNORED],
                            [IGNORED, IGNORED, 10, IGNORED, IGNORED, IGNORED]]  # fmt: skip
    model = build(with_further("one")).train()
    nothing = torch.full((ROWS, LENGTH), IGNORED)
    nothing[:, 0] = 3  # of which no further token is known
    loss = objective().loss_of(model, {"tokens": tokens()}, nothing).loss
    loss.backward()
    assert loss.isfinite() and all(parameter.grad is not None for parameter in model.parameters())


def test_documents_of_a_row_are_as_each_alone() -> None:
    model, text = build(with_further("two, another block"), dtype=torch.float64).train(), tokens()
    ids = (torch.arange(LENGTH) >= 9).long().expand(ROWS, -1)
    together = model(text, document_ids=ids).further
    for part in (slice(0, 9), slice(9, None)):
        for ahead, (whole, alone) in enumerate(zip(together, model(text[:, part]).further, strict=True), start=1):
            torch.testing.assert_close(whole[:, part][:, :-ahead], alone[:, :-ahead])
    with pytest.raises(SpecError, match=r"further_tokens.block.mixer: gru does not separate packed documents"):
        build(with_further("experts"))(text, document_ids=ids)


REFUSALS = {
    "head={kind: classification, num_classes: 2}": "further_tokens: the head does not predict tokens",
    "further_tokens.count=0": "further_tokens.count: 0 is too small",
    "further_tokens.block.weights_of=0": "further_tokens.block.weights_of: this block cannot share weights",
    "further_tokens.block.mixer.num_heads=3": "further_tokens.block.mixer.num_heads: ",
    "further_tokens.block.cross_attention={num_heads: 4}": "further_tokens.block.cross_attention: the model has",
    "further_tokens.block.mixer.position=relative_bias": "further_tokens.block.mixer.position: only the model",
    "further_tokens.norm=batch": "further_tokens.norm",
}


@pytest.mark.parametrize("assignment", REFUSALS)
def test_what_does_not_fit_is_refused(assignment: str) -> None:
    with pytest.raises(SpecError) as refused:
        with_further("two, another block", assignment)
    assert str(refused.value).startswith(REFUSALS[assignment])


def test_formats_that_have_no_word_for_it_refuse_it() -> None:
    family = families.family_for(BASE)
    assert family.published is not None
    with pytest.raises(CheckpointError, match=r"further_tokens\.count: the llama format cannot express 1"):
        family.format.config_for(with_further("one"))
    with pytest.raises(CheckpointError, match=r"further_tokens: llama\.cpp does not support"):
        gguf_of("llama", with_further("one")).metadata(with_further("one"), dict, lambda name: [])


def test_layouts_that_part_what_it_reads_are_refused() -> None:
    for size in ("context", "pipeline"):
        recipe = Recipe.parse({"parallel": {size: 2}, "batch_size": 4})
        with pytest.raises(SpecError, match=f"parallel.{size}: further_tokens "):
            Parallel.parse({size: 2}).check(with_further("one"), recipe)
    with pytest.raises(SpecError, match=r"3 does not divide the 2 of further_tokens.block.mixer.num_heads"):
        model = with_further("two, another block", "layers[*].mixer.num_heads=6", "layers[*].mixer.num_kv_heads=3",
                             "layers[*].mixer.head_dim=6", "layers[*].feedforward.d_ff=12")  # fmt: skip
        Parallel.parse({"tensor": 3}).check(model, Recipe.parse({"parallel": {"tensor": 3}, "batch_size": 4}))
    assert with_further("one").with_class_head(2).further_tokens is None
