"""What a model does in each phase: which texts go through which stack, and what is multiplied outside the stacks.

- `forward`: a whole text without a state, and logits of every position.
- `prefill`: the same on an empty state, and logits of the last position only.
- `decode`: one more token at the end of a text of that length.

A source is as long as its target. A picture has one length. What stands before the last position of an n-gram model
matters to no answer but its own. A MegaByte token takes its share of a step of the global model, which goes once for
each patch, and a whole patch of the local model, which reads its patch anew for each byte.
What does not write token by token (encoders) has only `forward`.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Literal, NamedTuple, assert_never

from archetype import spec
from archetype.cost import flops, sizes
from archetype.cost.formula import Formula, formula, symbol
from archetype.cost.parameters import Counts

Phase = Literal["forward", "prefill", "decode"]
PHASES: tuple[Phase, ...] = ("forward", "prefill", "decode")


class Work(NamedTuple):
    """How much goes through a model at once."""

    batch: int
    length: int
    pairs: flops.Pairs = "full"

    @property
    def rows(self) -> Formula:
        """B."""
        return symbol("b", self.batch)

    @property
    def tokens_of_a_row(self) -> Formula:
        """N."""
        return symbol("n", self.length)


def writes(model: spec.ModelSpec) -> bool:
    """Whether it makes text token by token."""
    return not isinstance(model, spec.Encoder | spec.VisionEncoder)


def stack_passes(model: spec.ModelSpec, work: Work, phase: Phase) -> Mapping[str, flops.Pass]:
    """What each stack works on in a phase, by the stack's prefix; a stack that rests has none."""
    rows, n, step = work.rows, work.tokens_of_a_row, phase == "decode"
    if phase != "forward" and not writes(model):
        return {}
    match model:
        case spec.Decoder():
            return {"": flops.Pass(rows, n, True, work.pairs, step)}
        case spec.Encoder() | spec.VisionEncoder():
            return {"": flops.Pass(rows, n, False, work.pairs)}
        case spec.EncoderDecoder():
            ours = {"decoder.": flops.Pass(rows, n, True, work.pairs, step, source=n)}
            return ours if step else {"encoder.": flops.Pass(rows, n, False, work.pairs)} | ours
        case spec.NGram():
            return {}
        case spec.MegaByte():
            patches, size = patches_of(model, work.length), symbol("p", model.patch_size)
            answered = rows * patches if phase == "forward" else rows  # patches whose bytes get logits
            return {
                "global_model.": flops.Pass(rows.over(size) if step else rows, patches, True, work.pairs, step),
                "local_model.": flops.Pass(answered, size, True, work.pairs),
            }
        case _:
            assert_never(model)


def outside(model: spec.ModelSpec, work: Work, phase: Phase) -> Counts:
    """FLOPs of what is no block, by module."""
    rows = work.rows
    tokens = rows if phase == "decode" else rows * work.tokens_of_a_row
    answered = tokens if phase == "forward" else rows  # positions whose logits are computed
    if phase != "forward" and not writes(model):
        return {}
    match model:
        case spec.Decoder() | spec.EncoderDecoder():
            return language_model_head(model.head, model.vocab_size, symbol("d", model.d_model), answered)
        case spec.Encoder():
            d = symbol("d", model.d_model)
            if isinstance(model.head, spec.MaskedLanguageModelHead):
                return {"lm_head.dense": 2 * tokens * d * d, "lm_head": logits(model.vocab_size, d, tokens)}
            return classes(model.head, model.pooler, d, rows)
        case spec.VisionEncoder():
            d = symbol("d", model.d_model)
            patches = rows * (work.tokens_of_a_row + (-1 if model.class_token else 0))
            patch = {"embedding.patch": 2 * patches * sizes.patch_numbers(model) * d}
            return patch | classes(model.head, model.pooler, d, rows)
        case spec.NGram():
            widths = sizes.hidden_widths(model)
            layers = enumerate(pairwise(widths))
            hidden = {f"hidden.{i}": 2 * answered * ins * outs for i, (ins, outs) in layers}
            return hidden | language_model_head(model.head, model.vocab_size, widths[-1], answered)
        case spec.MegaByte():
            _, local = (sizes.width(stack) for stack in model.stacks)
            read = stack_passes(model, work, phase)["local_model."].tokens
            projection = {"projection": 2 * read * sizes.byte_width(model) * local}
            return projection | language_model_head(model.head, model.vocab_size, local, answered)
        case _:
            assert_never(model)


def language_model_head(head: spec.LanguageModelHead, vocab_size: int, features: Formula, answered: Formula) -> Counts:
    """FLOPs of the logits, and of the layer before them."""
    before = {} if head.transform is None else {"lm_head.dense": 2 * answered * features * features}
    return before | {"lm_head": logits(vocab_size, features, answered)}


def logits(vocab_size: int, features: Formula, positions: Formula) -> Formula:
    """FLOPs of the logits of some positions."""
    return 2 * positions * symbol("V", vocab_size) * features


def classes(head: spec.VisionHead, pooled: bool, d: Formula, rows: Formula) -> Counts:
    """FLOPs of the logits of classes, and of the layer before them; vectors alone are given without it."""
    match head:
        case spec.ClassificationHead():
            pooler = {"pooler": 2 * rows * d * d} if pooled else {}
            return pooler | {"classifier": 2 * rows * d * symbol("Y", head.num_classes)}
        case spec.NoHead():
            return {}
        case _:
            assert_never(head)


def patches_of(model: spec.MegaByte, length: int) -> Formula:
    """Patches of a text: those that are complete, and the one that its next byte belongs to."""
    return symbol("m", length // model.patch_size + 1)


def training(forward: Formula | int, recomputed: Formula | int = 0) -> Formula:
    """A training step: forward, backward twice that (the gradients of input and weight of every product).

    `recomputed` is what goes forward once more: the blocks, where their activations are not kept.
    """
    return formula(forward) * 3 + recomputed
