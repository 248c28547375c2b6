"""One table for embedding and logits: the parameters that it saves, in memory and on disk."""

import tempfile
from pathlib import Path

import torch

from archetype.api.language_model import LanguageModel
from archetype.estimate.report import cost_report
from archetype.io.tensors import Tensors
from archetype.models.build import build
from archetype.models.decoder.spec import Decoder
from archetype.parts.head.spec import LanguageModelHead
from archetype.studies.outcome import Control, Outcome
from archetype.studies.registry import check
from claims.small_models import EXACT, WRONG, block, decoder, random_model, random_tokens, relative_error


@check("tying.parameters", claim=15, part="a")
def parameters(quick: bool) -> Outcome:
    """A tied head saves exactly V d parameters, in memory and on disk, and multiplies by the embedding's table."""
    sizes = ((31, 16), (300, 24)) if quick else ((31, 16), (300, 24), (4096, 96), (50_257, 64))
    wrong, errors, controls = 0, [], []
    for vocabulary, d in sizes:
        untied, tied = (
            decoder(block(), vocab_size=vocabulary, d_model=d, head=LanguageModelHead(tied=tied))
            for tied in (False, True)
        )
        saved = vocabulary * d
        counts = [cost_report(model).parameters["total"] for model in (untied, tied)]
        numbers = [sum(p.numel() for p in build(model).parameters()) for model in (untied, tied)]
        on_disk = [bytes_on_disk(model) for model in (untied, tied)]
        wrong += counts[0] - counts[1] != saved or counts != numbers or on_disk[0] - on_disk[1] != 4 * saved
        one, other = random_model(tied), random_model(untied)
        tokens = random_tokens(tied, 2, 16)
        controls.append(relative_error(other(tokens).logits, one(tokens).logits))
        other.load_state_dict(one.state_dict() | {"lm_head.weight": one.embedding.token.weight})
        errors.append(relative_error(other(tokens).logits, one(tokens).logits))
    return Outcome(
        wrong == 0 and max(errors) <= EXACT[torch.float64],
        f"of {len(sizes)} vocabularies and widths tying saves exactly V d parameters as computed, built and written "
        f"({4 * saved:,} bytes of the last in float32); logits equal those of an untied head with the same table to "
        f"{max(errors):.1e}",
        {"mismatches": wrong, "error": max(errors)},
        (Control("a head with a table of its own", min(controls), WRONG),),
    )


def bytes_on_disk(model: Decoder) -> int:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        LanguageModel(model, build(model), None).save(folder)
        file = folder / "model.safetensors"
        # without the header, whose length depends on names
        header = int.from_bytes(file.read_bytes()[:8], "little")
        assert Tensors.open(folder).names()
        return file.stat().st_size - 8 - header
