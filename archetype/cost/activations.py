"""Bytes of activations in a training step: what autograd keeps of a whole model, and what stands beside it.

Of the logits the loss keeps their log-softmax, in float32; the logits themselves live until the loss is there.
Computed in bfloat16, every weight of a product has a cast copy. What each block keeps is in `kept.py`; with blocks
computed again in the backward pass only their inputs are kept, and one block's activations at a time.
"""

from typing import NamedTuple, assert_never

from archetype import spec
from archetype.cost import passes, sizes
from archetype.cost.layers import alike
from archetype.cost.rows import rows
from archetype.cost.saved_activations import FLOAT, Computed, Texts, block, norm

INDEX = 8  # bytes of a token's or a position's number


class Kept(NamedTuple):
    """Bytes for a whole batch."""

    outside: int  # embeddings, what layers share, final norms, the head and the loss
    blocks: int
    inputs: int  # of all blocks: what is kept of them if they are computed again
    largest: int  # of one block
    logits: int  # alive only until the loss is there

    @property
    def saved(self) -> int:
        """What autograd keeps."""
        return self.outside + self.blocks

    @property
    def peak(self) -> int:
        """What is held when the loss is computed."""
        return self.saved + self.logits

    @property
    def peak_recomputed(self) -> int:
        """The same where blocks are computed again: the logits and one block's activations never meet."""
        return self.outside + self.inputs + max(self.logits, self.largest)


def of_model(model: spec.ModelSpec, batch: int, length: int, computed: Computed) -> Kept:
    """What a training step on `batch` rows of `length` tokens keeps."""
    runs = passes.stack_passes(model, passes.Work(batch, length), "forward")
    outside, blocks, inputs, largest = ends(model, batch, length, computed), 0, 0, 0
    for stack in model.stacks:
        of = runs[stack.prefix]
        source = of.source.value if of.source else 0
        texts = Texts(of.rows.value, of.length.value, stack.causal, computed, source)
        outside += norm(stack.final_norm, texts.tokens, stack.d_model) + tables(stack, texts)
        for group in alike(stack.layers):
            one = block(group.block, stack.d_model, texts, group.places[0])
            blocks += one * len(group.places)
            largest = max(largest, one)
        inputs += len(stack.layers) * texts.tokens * stack.d_model * FLOAT
    return Kept(outside, blocks, inputs, largest, logits(model, batch, length))


def tables(stack: spec.StackView, texts: Texts) -> int:
    """Bytes of what a stack's layers share: angles, and numbers added to scores."""
    angles: dict[tuple[spec.Rotary, int], int] = {}
    slopes: dict[int, int] = {}
    buckets = 0
    for group in alike(stack.layers):
        match group.block.mixer:
            case spec.Attention(position=spec.Rotary() as rotary) as part:
                turned = part.sizes(stack.d_model).rotary_dim
                angles[rotary, turned] = texts.tokens * turned * FLOAT
            case spec.LatentAttention(position=rotary, qk_rope_head_dim=turned):
                angles[rotary, turned] = texts.tokens * turned * FLOAT
            case spec.Attention(position=spec.Alibi(), num_heads=heads):
                slopes[heads] = heads * texts.length**2 * FLOAT
            case spec.Attention(position=spec.RelativeBias()):
                buckets = texts.length**2 * (INDEX + 1)  # of every pair, and whether it is allowed
            case _:
                pass
    # computed in bfloat16, each layer keeps a cast copy of these numbers instead
    return buckets + (sum(angles.values()) + sum(slopes.values()) if texts.computed == "float32" else 0)


def ends(model: spec.ModelSpec, batch: int, length: int, computed: Computed) -> int:
    """Bytes that are kept before and behind the stacks: indices, the embedding's norm, the head's input, the loss."""
    texts = Texts(batch, length, False, computed)
    tokens = texts.tokens
    cast = cast_weights(model) if computed == "bfloat16" else 0
    loss = logits(model, batch, length) + tokens * INDEX + FLOAT  # log-softmax, targets, their number
    match model:
        case spec.Decoder():
            read = embedding(model.embedding, model.d_model, texts) + texts.inputs(model.d_model, 1)
            return read + head(model.head, model.vocab_size, model.d_model, texts) + loss + cast
        case spec.EncoderDecoder():
            read = 2 * embedding(model.embedding, model.d_model, texts) + texts.inputs(model.d_model, 1)
            # what the encoder says, read by every layer's cross-attention
            read += tokens * model.d_model * FLOAT
            return read + head(model.head, model.vocab_size, model.d_model, texts) + loss + cast
        case spec.Encoder():
            read = embedding(model.embedding, model.d_model, texts)
            read += tokens * INDEX if model.embedding.num_token_types else 0
            if isinstance(model.head, spec.MaskedLanguageModelHead):
                hidden = norm(model.head.norm, tokens, model.d_model) + 3 * texts.inputs(model.d_model, 1)
                return read + hidden + loss + cast
            return read + loss + cast
        case spec.VisionEncoder():
            pixels = texts.inputs(sizes.patch_numbers(model).value, 1)
            return pixels + norm(model.embedding.norm, tokens, model.d_model) + loss + cast
        case spec.NGram():
            widths = [width.value for width in sizes.hidden_widths(model)]
            read = tokens * INDEX * model.n + texts.inputs(widths[0], 1)
            read += sum(2 * texts.inputs(width, 1) for width in widths[1:])
            return read + head(model.head, model.vocab_size, widths[-1], texts) + loss + cast
        case spec.MegaByte():
            wide, local = (stack.d_model for stack in model.stacks)
            read = 3 * tokens * INDEX + texts.inputs(wide // model.patch_size, 1) + texts.inputs(local, 1)
            return read + head(model.head, model.vocab_size, local, texts) + loss + cast
        case _:
            assert_never(model)


def embedding(part: spec.Embedding, d: int, texts: Texts) -> int:
    """Bytes that looking tokens up keeps; a row of positions serves the whole batch."""
    tokens = texts.rows * (texts.length + 1) * INDEX  # the text with its next token, of which this is a view
    positions = texts.length * INDEX if isinstance(part.position, spec.Learned) else 0
    masks = texts.tokens * d * FLOAT if part.dropout else 0
    return tokens + positions + norm(part.norm, texts.tokens, d) + masks


def head(part: spec.LanguageModelHead, vocab_size: int, features: int, texts: Texts) -> int:
    """Bytes that bending the logits keeps, and the layer before them."""
    bent = texts.tokens * vocab_size * texts.bytes_each if part.softcap else 0
    if part.transform is None:
        return bent
    return bent + norm(part.transform.norm, texts.tokens, features) + 2 * texts.inputs(features, 1)


def logits(model: spec.ModelSpec, batch: int, length: int) -> int:
    """Bytes of what the loss reads, in float32."""
    match model:
        case spec.Decoder() | spec.EncoderDecoder() | spec.NGram() | spec.MegaByte():
            return batch * length * model.vocab_size * FLOAT
        case spec.Encoder() | spec.VisionEncoder():
            match model.head:
                case spec.MaskedLanguageModelHead():
                    assert isinstance(model, spec.Encoder)
                    return batch * length * model.vocab_size * FLOAT
                case spec.ClassificationHead(num_classes=classes):
                    return batch * classes * FLOAT
                case spec.NoHead():
                    return 0
                case _:
                    assert_never(model.head)
        case _:
            assert_never(model)


def cast_weights(model: spec.ModelSpec) -> int:
    """Bytes of the copies in bfloat16 of all weights that multiply something."""
    found = rows(model, passes.Work(1, 1))
    multiplied = sum(row.parameters for row in found if row.forward)
    tied = not isinstance(model.head, spec.ClassificationHead | spec.NoHead) and model.head.tied
    table = next(row.parameters for row in found if row.module.endswith("embedding.token")) if tied else 0
    return 2 * (multiplied + table)
