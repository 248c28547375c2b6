"""Models as one graph of `torch.compile`, compared with themselves; a program.

    python -m tests.helpers.compiled experts pair   # small models: two of four
    python -m tests.helpers.compiled mistral-tiny   # presets, with texts as long as they can be

Started without pytest, for the compiler would have to go through the checks of shapes.
"""

import sys

import torch
from torch import Tensor, nn

from archetype.families import preset
from archetype.models.build import build
from archetype.models.output import Output
from tests.helpers.inputs import example_inputs
from tests.helpers.passes import logits_or_hidden
from tests.helpers.replicas import BALANCED, gradients
from tests.helpers.specs import ALL
from tests.helpers.weights import distance, randomize

# PyTorch 2.11 breaks the graph at the defaults of a dataclass
IS_ONE_GRAPH = torch.torch_version.TorchVersion(torch.__version__) >= (2, 13)


def main() -> None:
    """Outputs of whole models, and gradients."""
    torch.set_num_threads(1)
    small = {"attention": ALL["attention"], "pair": ALL["encoder-decoder"], "experts": BALANCED}
    small |= {"reading": ALL["keys of another layer, window"]}
    for name in sys.argv[1:]:
        torch.manual_seed(0)
        if name in small:
            model, inputs = randomize(build(small[name])).train(), example_inputs(small[name])
            compare(name, model, inputs, "eager")
            continue
        spec = preset(name)
        model, inputs = randomize(build(spec)).eval(), example_inputs(spec, rows=2)  # without dropout
        if "tokens" in inputs:  # long enough for tiles of sparse patterns
            inputs["tokens"] = torch.randint(3, spec.vocab_size, (2, min(256, spec.context_length)))
        torch._dynamo.reset()
        compare(name, model, inputs, backend="aot_eager")


def compare(name: str, model: nn.Module, inputs: dict[str, Tensor], backend: str) -> None:
    """Outputs and gradients of a model and of its one graph."""
    compiled = torch.compile(model, backend=backend, fullgraph=IS_ONE_GRAPH)
    actual, expected = compiled(**inputs), model(**inputs)
    assert type(actual) is Output
    assert distance(logits_or_hidden(actual), logits_or_hidden(expected)) < 1e-5, name
    assert (actual.aux_loss is None) == (expected.aux_loss is None)
    with torch.no_grad():  # another graph
        assert distance(logits_or_hidden(compiled(**inputs)), logits_or_hidden(expected)) < 1e-5, name
    # in float64: in float32, gradients of random models differ by more than 1e-5 where sums have another order
    model.double()
    compiled = torch.compile(model, backend=backend, fullgraph=IS_ONE_GRAPH)
    inputs = {tensor: value.double() if value.is_floating_point() else value for tensor, value in inputs.items()}
    by_eager = {tensor: gradient.clone() for tensor, gradient in gradients(model, inputs).items()}
    model.zero_grad()
    by_compiler = gradients(compiled, inputs)
    for tensor, gradient in by_eager.items():
        assert distance(by_compiler[f"_orig_mod.{tensor}"], gradient) < 1e-5, f"{name}: {tensor}"
    print(name, flush=True)


if __name__ == "__main__":
    main()
