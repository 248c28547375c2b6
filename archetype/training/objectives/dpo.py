"""Direct preference optimization on pairs of completions."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.data.conversations import Row, prompt_and_answer
from archetype.data.example_counts import ExampleCounts
from archetype.data.pairs import Pairs
from archetype.data.preparation import prepared
from archetype.errors import DataError, SpecError
from archetype.models.spec import ModelSpec
from archetype.spec.base import Positive
from archetype.spec.kinds import part
from archetype.training.datasets import Data
from archetype.training.examples import Preferences, Records
from archetype.training.objectives.base import (
    Batch,
    Counts,
    LossOutput,
    ObjectiveConfig,
    ObjectiveInputs,
)
from archetype.training.objectives.by_length import SPLITS, ByLengthObjective, Split
from archetype.training.objectives.chat import MarkedRow, marked_batch

Pair = tuple[MarkedRow, MarkedRow]  # prompt and chosen completion, prompt and rejected completion


@part
class DPO(ObjectiveConfig):
    """-log sigmoid(beta (log p(y_w|x)/p_ref(y_w|x) - log p(y_l|x)/p_ref(y_l|x))) (Rafailov 2023, equation 7).

    The reference is the initial model of the run. Its log-probabilities are computed once, before the first step.

    Attributes:
        beta: strength of the penalty for moving away from the reference.
    """

    kind: Literal["dpo"] = "dpo"
    beta: Positive = 0.1

    def suits(self, spec: ModelSpec, data: Data) -> bool:
        return spec.continues_text and isinstance(data, Preferences)

    def build(self, inputs: ObjectiveInputs) -> "DPOObjective":
        return DPOObjective(inputs, self.beta)


class DPOObjective(ByLengthObjective):
    """DPO on batches of completion pairs."""

    unit = "pair"

    def __init__(self, inputs: ObjectiveInputs, beta: float) -> None:
        assert isinstance(inputs.data, Preferences)
        self.inputs, self.beta, self.num_too_long = inputs, beta, 0
        self.training, self.validation = (self._pairs(records) for records in inputs.data.split(inputs.texts))
        if not self.training or not self.validation:
            cause = f"no completion pair fits into {inputs.sequence_length} tokens"
            raise SpecError("sequence_length", cause, "increase sequence_length")
        lengths = np.array([max(len(ids) for ids, _ in pair) for pair in self.training])
        self.order_by(lengths, inputs.batch_size, inputs.seed)
        sequences = [row for pair in (*self.training, *self.validation) for row in pair]
        self.fingerprint = Pairs(
            [ids for ids, _ in sequences], [marks.astype(np.int32) for _, marks in sequences]
        ).fingerprint
        counts = ExampleCounts(inputs.sequence_length, num_too_long=self.num_too_long)
        self.description = counts.described(f"{len(self.training):,} completion pairs")
        # each pair is two rows of one forward pass
        self.batch_shape = 2 * self.order.batch_size, max(len(ids) for ids, _ in sequences) - 1
        # placeholders until `prepare` or `restore`, so that batches have all their tensors
        self.restore({split: torch.zeros(len(getattr(self, split)), 2) for split in SPLITS})

    def prepare(self, model: nn.Module, dtype: str) -> dict[str, Tensor]:
        was_training = model.training
        reference: dict[str, Tensor] = {}
        # no dropout: the reference is a constant
        model.eval()
        with torch.no_grad():
            for split in SPLITS:
                pairs: list[Pair] = getattr(self, split)
                parts = [pairs[i : i + self.order.batch_size] for i in range(0, len(pairs), self.order.batch_size)]
                device = next(model.parameters()).device
                with torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
                    sums = [
                        self._log_probabilities(model, [t.to(device) for t in self.collate(part)])[0] for part in parts
                    ]
                reference[split] = torch.cat(sums).cpu()
        model.train(was_training)
        self.restore(reference)
        return reference

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the reference log-probabilities (n, 2) of chosen and rejected completions."""
        self.reference = tensors

    def rows(self, split: Split, indices: npt.NDArray[np.int64]) -> Batch:
        """Append the reference log-probabilities (B, 2) to the tensors of the pairs."""
        return (*super().rows(split, indices), self.reference[split][indices])

    def collate(self, examples: Sequence[Pair]) -> Batch:
        """Return tokens (B, T), lengths (B,) and completion mask (B, T) of the chosen completions, and the same for the
        rejected completions.
        """
        return (*marked_batch([pair[0] for pair in examples]), *marked_batch([pair[1] for pair in examples]))

    def inputs_and_targets(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Return inputs and next tokens, (2 B, T), of the chosen and then the rejected completions."""
        width = max(batch[0].shape[1], batch[3].shape[1])  # one forward pass for both sides
        tokens = torch.cat(
            [
                nn.functional.pad(tokens_of_side, (0, width - tokens_of_side.shape[1]))
                for tokens_of_side in (batch[0], batch[3])
            ]
        )
        num_tokens = torch.cat((batch[1], batch[4]))
        return {"tokens": tokens[:, :-1], "num_tokens": (num_tokens - 1).clamp(max=width - 1)}, tokens[:, 1:]

    def guessing_loss(self, spec: ModelSpec) -> float:
        """Return the loss of the reference model, whose reward margins are 0."""
        return math.log(2)

    def target_counts(self, batch: Batch) -> Counts:
        # number of pairs
        return (len(batch[0]),)

    def compute_loss(self, model: nn.Module, batch: Batch, counts: Counts = ()) -> LossOutput:
        """Return the mean loss over pairs. A pair counts as correct if its chosen completion has the larger reward."""
        log_probabilities, aux_loss = self._log_probabilities(model, batch)
        rewards = self.beta * (log_probabilities - batch[6])  # (B, 2): chosen, rejected
        margins = rewards[:, 0] - rewards[:, 1]
        loss = -nn.functional.logsigmoid(margins).mean()
        num_correct = None if loss.requires_grad else int((margins > 0).sum())
        margin = None if loss.requires_grad else margins.mean().item()
        return LossOutput(loss if aux_loss is None else loss + aux_loss, len(margins), num_correct, margin)

    def _log_probabilities(
        self, model: nn.Module, batch: Batch | list[Tensor]
    ) -> tuple[Float[Tensor, "B 2"], Tensor | None]:
        # summed log-probability of each completion, and the model's auxiliary loss
        inputs, targets = self.inputs_and_targets(tuple(batch))
        output = model(**inputs)
        # (2 B, T) log-probability of each next token
        log_probabilities = output.logits.float().log_softmax(-1).gather(-1, targets[..., None])[..., 0]
        # (2 B, T) marks of the next tokens, padded like the tokens
        is_completion = torch.cat(
            [nn.functional.pad(marks, (0, targets.shape[1] + 1 - marks.shape[1])) for marks in (batch[2], batch[5])]
        )[:, 1:]
        return log_probabilities.masked_fill(~is_completion, 0.0).sum(-1).view(2, -1).T, output.aux_loss

    def _pairs(self, records: Records) -> list[Pair]:
        longest = self.inputs.sequence_length + 1
        pairs: list[Pair] = []
        for record in prepared(records):
            chosen, rejected = (self._row(record, record[field]) for field in ("chosen", "rejected"))
            if max(len(chosen.ids), len(rejected.ids)) <= longest:
                pairs.append((chosen.arrays(longest), rejected.arrays(longest)))
        self.num_too_long += len(records) - len(pairs)
        return pairs

    def _row(self, record: Mapping[str, Any], completion: Any) -> Row:
        prompt, tokenizer, row = record["prompt"], self.inputs.text_tokenizer, Row()
        if isinstance(prompt, str) and isinstance(completion, str):
            row.extend(prompt, False, tokenizer)
            row.extend(prompt + completion, True, tokenizer)
            before = [tokenizer.bos] if tokenizer.adds_bos and tokenizer.bos is not None else []
            after = list(tokenizer.eos[:1])
            marks = [False] * len(before) + row.is_answer + [True] * len(after)
            return Row(before + row.ids + after, marks, row.text)
        if self.inputs.template is None or not isinstance(prompt, list) or not isinstance(completion, list):
            cause = f"prompt {str(prompt)[:40]!r} and its completions must all be text, or all be messages"
            raise DataError("data.examples", cause, "use text, or use messages with a model that has a chat template")
        asked, answered = prompt_and_answer(prompt, completion, self.inputs.template)
        row.extend(asked, False, tokenizer)
        row.extend(answered, True, tokenizer)
        return row
