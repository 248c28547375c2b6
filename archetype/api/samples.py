"""Samples from a model in training: the first validation example, continued, filled in or translated."""

import torch
from torch import Tensor

from archetype.api.language_model import LanguageModel
from archetype.api.seq2seq_lm import Seq2SeqLM
from archetype.api.text_generator import TextGenerator
from archetype.errors import ArchetypeError, one_line
from archetype.training.objectives.base import IGNORED, Batch
from archetype.training.objectives.masked_token import MaskedTokenObjective
from archetype.training.objectives.next_token import NextTokenObjective
from archetype.training.objectives.sequence_to_sequence import SequenceToSequenceObjective
from archetype.training.state import TrainState

PROMPT_TOKENS, NEW_TOKENS = 8, 40
MASKED_TOKENS = 24  # shown of a text with masks
MAX_SAMPLE = 500  # characters


def sample(state: TrainState) -> str:
    """Return a sample in one line: a continued text, filled-in masks, or a source with its target; "" for images.

    The model is in training mode afterwards.
    """
    if state.tokenizer is None:
        return ""
    lm = LanguageModel(state.model.spec, state.model.eval(), state.tokenizer)
    try:
        return one_line(_write(lm, state), MAX_SAMPLE)
    except ArchetypeError as error:  # a registered part that cannot generate can still be trained
        return str(error)
    finally:
        state.model.train()


def _write(lm: LanguageModel, state: TrainState) -> str:
    match state.objective:
        case NextTokenObjective() as objective:
            # the same prompt at each evaluation, so that samples are comparable
            prompt = _decode(lm, objective.validation_batch(0)[0][0, :PROMPT_TOKENS])
            return prompt + lm.expect(TextGenerator).generate(
                prompt, max_new_tokens=NEW_TOKENS, temperature=0.8, seed=state.step
            )
        case SequenceToSequenceObjective() as objective:
            source, num_tokens, *_ = objective.validation_batch(0)
            text = _decode(lm, source[0, : int(num_tokens[0]) - 1])  # without the end token
            return f"{text} -> {lm.expect(Seq2SeqLM).translate(text, num_beams=1)}"
        case MaskedTokenObjective() as objective:
            return _filled(lm, objective, objective.validation_batch(0))
        case _:
            return ""


@torch.inference_mode()
def _filled(lm: LanguageModel, objective: MaskedTokenObjective, batch: Batch) -> str:
    # first tokens of a text; each predicted position shows the most likely token in brackets
    assert lm.tokenizer is not None
    inputs, targets = objective.inputs_and_targets(tuple(tensor[:1].to(lm.model.device) for tensor in batch))
    # (T,) most likely ids; a vocabulary padded beyond the tokenizer's has logits for ids without a text
    likeliest = lm.model(**inputs).logits[0, :, : lm.tokenizer.vocab_size].argmax(-1)
    pieces, start = [], 0  # position after the last prediction
    length = min(MASKED_TOKENS, targets.shape[1])
    for position in (targets[0, :length] != IGNORED).nonzero()[:, 0].tolist():
        pieces += [
            _decode(lm, inputs["tokens"][0, start:position]),
            f"[{lm.tokenizer.token(int(likeliest[position]))}]",
        ]
        start = position + 1
    return " ".join(piece for piece in (*pieces, _decode(lm, inputs["tokens"][0, start:length])) if piece)


def _decode(lm: LanguageModel, ids: Tensor) -> str:
    assert lm.tokenizer is not None
    return lm.tokenizer.decode(ids.tolist())
