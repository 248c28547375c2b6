"""Documents that stand in one row and do not see each other are computed as each alone, or refused."""

import pytest
import torch

from archetype import spec
from archetype.errors import SpecError
from archetype.models.build import build
from tests.helpers.specs import ATTENTION, DECODERS, attending
from tests.helpers.weights import distance, randomize

LENGTHS = ((5, 1, 9, 3), (11, 7))
CARRIES_ON = {
    "rnn", "lstm", "gru", "mamba", "mamba, norms", "mamba2", "mamba2, chunks", "delta net", "delta net, chunks",
    "short convolution", "hybrid", "plain",
}  # fmt: skip
COMPUTED = {
    "attention", "rotary", "alibi", "relative bias", "additive", "softcap", "sinks", "query scale", "window", "strided",
    "fixed", "global window", "latent", "latent, low rank", "experts", "learned",
    "value table, gated", "hash", "per-layer inputs",
}  # fmt: skip
MODELS = {name: DECODERS[name] for name in (*COMPUTED, *CARRIES_ON)} | {
    "sinusoidal": attending(position={"kind": "none"}).replace(embedding={"position": {"kind": "sinusoidal"}}),
    "window, rotary": attending(position={"kind": "rotary"}, pattern={"kind": "window", "size": 4}),
}


def test_every_decoder_gives_the_logits_of_each_document_alone_or_names_the_layer_that_cannot() -> None:
    """A control: without ids the second document of a row sees the first."""
    tokens = torch.randint(31, (2, 18), generator=torch.Generator().manual_seed(0))
    ids = torch.stack([torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row)) for row in LENGTHS])
    refused = set()
    for name, drawn in MODELS.items():
        model = build(drawn).eval()
        randomize(model)
        try:
            together = model(tokens, document_ids=ids).logits
        except SpecError as error:
            assert "layers[0].mixer: " in str(error)
            assert "does not separate packed documents" in str(error)
            refused.add(name)
            continue
        is_mixed = False
        for row, lengths in enumerate(LENGTHS):
            ends = torch.tensor(lengths).cumsum(0).tolist()
            for first, last in zip([0, *ends], ends, strict=False):
                alone = model(tokens[row : row + 1, first:last]).logits[0]
                assert distance(together[row, first:last], alone) < 1e-5, name
                is_mixed |= distance(model(tokens[row : row + 1]).logits[0, first:last], alone) > 1e-3
        assert is_mixed, name
    assert refused == CARRIES_ON


def test_what_depends_on_the_length_of_a_row_is_refused() -> None:
    tokens, ids = torch.zeros(1, 8, dtype=torch.long), torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
    dynamic = {"kind": "rotary", "scaling": {"kind": "dynamic", "factor": 2.0, "original_context_length": 4}}
    with pytest.raises(SpecError, match="attention does not separate packed documents"):
        build(attending(position=dynamic))(tokens, document_ids=ids)
    model = build(spec.parse(attending(**ATTENTION).dump()))
    with pytest.raises(SpecError, match="document_ids: cannot be combined with a state"):
        model(tokens, model.new_state(1), document_ids=ids)
