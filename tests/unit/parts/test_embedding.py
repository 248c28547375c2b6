"""Token vectors written out: scale, projection, norm, positions and types, in the order that the specification says."""

from itertools import product

import pytest
import torch

import archetype
from archetype import spec
from archetype.nn.context import ForwardContext
from tests.helpers.weights import distance, randomize


@pytest.mark.parametrize(("norm_first", "project_first"), [*product((True, False), repeat=2)])
def test_vectors_are_scaled_projected_normed_and_added_to_in_order(norm_first: bool, project_first: bool) -> None:
    plain = archetype.load_spec("bert-tiny")
    assert isinstance(plain, spec.Encoder)
    embedding = spec.Embedding(
        position=spec.Learned(), scale=3.0, num_token_types=2, norm=spec.LayerNorm(), norm_first=norm_first,
        width=24, project_first=project_first,
    )  # fmt: skip
    model = randomize(archetype.build(plain.replace(embedding=embedding, head=spec.NoHead()))).eval().double()
    tokens, types = torch.randint(256, (2, 7)), torch.tensor([[0, 0, 1, 1, 0, 1, 1], [1, 0, 0, 0, 0, 1, 0]])
    own = model.embedding
    x = 3.0 * own.token.weight[tokens]
    added = own.position.weight[:7] + own.token_type.weight[types]
    x = own.project(x) if project_first else x
    x = own.norm(x, None) + added if norm_first else own.norm(x + added, None)
    x = x if project_first else own.project(x)
    with torch.no_grad():
        assert distance(own(tokens, ForwardContext.of(own.token(tokens)), types), x) < 1e-12
