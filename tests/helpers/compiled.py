"""Models under `torch.compile`, compared with themselves; a program, `python -m tests.helpers.compiled`.

Started without pytest, for the compiler would have to go through the checks of shapes.
"""

import torch

from archetype.models.build import build
from archetype.models.output import Output
from tests.helpers.inputs import example_inputs
from tests.helpers.replicas import BALANCED, gradients
from tests.helpers.specs import ALL
from tests.helpers.weights import distance, randomize


def main() -> None:
    """Outputs of whole models, and the gradients of one."""
    torch.set_num_threads(1)
    models = {"attention": ALL["attention"], "pair": ALL["encoder-decoder"], "experts": BALANCED}
    for name, spec in (models | {"reading": ALL["keys of another layer, window"]}).items():
        model, inputs = randomize(build(spec)).train(), example_inputs(spec)
        compiled = torch.compile(model, backend="eager")
        actual, expected = compiled(**inputs), model(**inputs)
        assert type(actual) is Output
        assert distance(actual.logits, expected.logits) < 1e-5, name
        assert (actual.aux_loss is None) == (expected.aux_loss is None)
        print(name, flush=True)
        if name != "attention":
            continue
        by_eager = {tensor: gradient.clone() for tensor, gradient in gradients(model, inputs).items()}
        model.zero_grad()
        by_compiler = gradients(compiled, inputs)
        for tensor, gradient in by_eager.items():
            assert distance(by_compiler[f"_orig_mod.{tensor}"], gradient) < 1e-5, tensor


if __name__ == "__main__":
    main()
