"""Supervised fine-tuning on conversations, with a loss on the assistant's messages only."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from archetype.data.batches import Tokens
from archetype.data.conversations import conversation_rows
from archetype.data.example_counts import ExampleCounts
from archetype.data.pairs import Pairs
from archetype.data.preparation import prepared
from archetype.errors import SpecError
from archetype.models.decoder.module import check_documents_are_separate
from archetype.models.spec import ModelSpec
from archetype.spec.base import Flag
from archetype.spec.kinds import part
from archetype.training.datasets import Data
from archetype.training.examples import Conversations, Records
from archetype.training.objectives.base import IGNORED, Batch, ObjectiveConfig, ObjectiveInputs
from archetype.training.objectives.by_length import ByLengthObjective

MarkedRow = tuple[Tokens, npt.NDArray[np.bool_]]  # token ids, and the mask of the tokens of answers


@part
class Chat(ObjectiveConfig):
    """Supervised fine-tuning: cross-entropy of the assistant's messages, given the conversation so far.

    Attributes:
        packed: whether several conversations share a row; attention stays within a conversation.
    """

    kind: Literal["chat"] = "chat"
    packed: Flag = False

    def suits(self, spec: ModelSpec, data: Data) -> bool:
        return spec.continues_text and isinstance(data, Conversations)

    def build(self, inputs: ObjectiveInputs) -> "ChatObjective":
        if self.packed:
            check_documents_are_separate(inputs.spec, "objective.packed", "remove objective.packed")
        return ChatObjective(inputs, self.packed)


class ChatObjective(ByLengthObjective):
    """Batches of conversations."""

    def __init__(self, inputs: ObjectiveInputs, packed: bool) -> None:
        assert isinstance(inputs.data, Conversations)
        self.inputs, self.packed, self.num_cut, self.num_unanswered = inputs, packed, 0, 0
        conversations = [self._rows(records) for records in inputs.data.split(inputs.texts)]
        # one more token than the model reads: the last is a target only
        longest = inputs.sequence_length + 1 if packed else 0
        training, validation = (_packed(rows, longest) for rows in conversations)
        if not training or not validation:
            cause = f"no assistant answer fits into {inputs.sequence_length} tokens"
            raise SpecError("sequence_length", cause, "increase sequence_length")
        self.training, self.validation = training, validation
        rows = [_joined(row) for row in (*training, *validation)]
        lengths = np.array([len(ids) for ids, _ in rows])
        self.order_by(lengths[: len(training)], inputs.batch_size, inputs.seed)
        self.fingerprint = Pairs([ids for ids, _ in rows], [marks.astype(np.int32) for _, marks in rows]).fingerprint
        counts = ExampleCounts(inputs.sequence_length, self.num_cut, num_unanswered=self.num_unanswered)
        self.description = counts.described(f"{len(conversations[0]):,} conversations")
        # the model reads all tokens of a row but the last
        self.batch_shape = self.order.batch_size, int(lengths.max()) - 1

    def collate(self, examples: Sequence[list[MarkedRow]]) -> Batch:
        """Return tokens (B, T + 1), lengths (B,), answer mask (B, T + 1), and conversation ids if rows are packed."""
        batch = marked_batch([_joined(row) for row in examples])
        if not self.packed:
            return batch
        positions = torch.arange(batch[0].shape[1])
        ends = [torch.tensor([len(ids) for ids, _ in row]).cumsum(0) for row in examples]
        # (B, T + 1) index of each position's conversation; padding counts as part of the last one
        return (*batch, torch.stack([torch.bucketize(positions, row_ends[:-1], right=True) for row_ends in ends]))

    def inputs_and_targets(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Return all tokens but the last, and as targets each position's next token if it belongs to an answer."""
        tokens, num_tokens, is_answer, *ids = batch
        targets = tokens[:, 1:].masked_fill(~is_answer[:, 1:], IGNORED)
        inputs = {"tokens": tokens[:, :-1], "num_tokens": (num_tokens - 1).clamp(max=tokens.shape[1] - 1)}
        if ids:
            inputs["document_ids"] = ids[0][:, :-1]
            # the last token of a conversation does not predict the first token of the next
            targets = targets.masked_fill(ids[0][:, 1:] != ids[0][:, :-1], IGNORED)
        return inputs, targets

    def _rows(self, records: Records) -> list[MarkedRow]:
        template, longest = self.inputs.template, self.inputs.sequence_length + 1
        if template is None:
            remedy = "name a template file with --set data.template=FILE, or start from a chat model"
            raise SpecError("data.template", "the model has no chat template", remedy)
        rows: list[MarkedRow] = []
        for record in prepared(records):
            location = f"data.examples: {str(record['messages'])[:40]}"
            tokenizer, tools = self.inputs.text_tokenizer, record.get("tools")
            for row in conversation_rows(record["messages"], template, tokenizer, location, tools):
                ids, is_answer = row.arrays(longest)
                self.num_cut += len(row.ids) > longest
                if is_answer[1:].any():  # the first token of a row is never predicted
                    rows.append((ids, is_answer))
                else:
                    self.num_unanswered += 1
        return rows


def marked_batch(rows: list[MarkedRow]) -> Batch:
    """Pad rows at the end with token 0. Return tokens (B, T), lengths (B,) and loss mask (B, T)."""
    num_tokens = torch.tensor([len(ids) for ids, _ in rows])
    tokens = torch.zeros(len(rows), int(num_tokens.max()), dtype=torch.long)
    marks = torch.zeros_like(tokens, dtype=torch.bool)
    for row, (ids, is_marked) in enumerate(rows):
        tokens[row, : len(ids)], marks[row, : len(ids)] = torch.from_numpy(ids), torch.from_numpy(is_marked)
    return tokens, num_tokens, marks


def _packed(conversations: list[MarkedRow], longest: int) -> list[list[MarkedRow]]:
    """Fill rows of at most `longest` tokens with conversations in order, or if `longest` is 0, use one row for each."""
    rows: list[list[MarkedRow]] = []
    num_tokens = longest  # so that the first conversation opens a row
    for conversation in conversations:
        num_tokens += len(conversation[0])
        if num_tokens > longest:
            rows.append([])
            num_tokens = len(conversation[0])
        rows[-1].append(conversation)
    return rows


def _joined(row: list[MarkedRow]) -> MarkedRow:
    ids, marks = zip(*row, strict=True)
    return np.concatenate(ids), np.concatenate(marks)
