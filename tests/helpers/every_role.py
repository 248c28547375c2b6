"""An extension file with a member of every role, each as small as its role allows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

import archetype
from archetype import spec
from archetype.extend import (
    INT64,
    NOT_SHOWN,
    SHOWN,
    AnyNorm,
    AnyTokenEmbedding,
    Batch,
    CausalModel,
    CausalSpec,
    Choice,
    Corpus,
    Counts,
    Data,
    Decision,
    Evidence,
    ForwardContext,
    HeadCost,
    JSONTokenizer,
    KeySelector,
    LayerState,
    Length,
    Linear,
    MaskContext,
    ModelCost,
    NextTokenHead,
    NextTokenObjective,
    ObjectiveConfig,
    ObjectiveInputs,
    Optimizer,
    Output,
    PatternRule,
    Place,
    Positive,
    PreNormBlock,
    Probability,
    Record,
    ResidualStream,
    Run,
    RunningText,
    Schedule,
    ScoreBias,
    Size,
    State,
    Table,
    TokenEmbeddingCost,
    Tokenizer,
    TokenizerFile,
    Tracker,
    TrainingWork,
    Verdict,
    WideSize,
    Writer,
    build_embedding,
    corpus,
    corpus_of,
    last_tokens,
    paired_interval,
    sign_flip_p,
    split,
    symbol,
)

# parts of a block


class RunningMean(spec.Mixer):
    kind: Literal["running_mean"] = "running_mean"


@dataclass
class SumState(LayerState):
    total: Tensor


class RunningMeanModule(nn.Module):
    def __init__(self, mixer: RunningMean, place: Place) -> None:
        super().__init__()
        self.o = Linear(place.d_model, place.d_model)

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> SumState:
        return SumState(torch.zeros(batch, self.o.in_features, dtype=dtype, device=device))

    def forward(self, x: Tensor, context: ForwardContext, state: SumState | None = None) -> Tensor:
        y: Tensor = self.o(summed(x, context, state) / (context.positions[..., None] + 1))
        return y


def summed(x: Tensor, context: ForwardContext, state: SumState | None) -> Tensor:
    """The sum of the vectors up to each position, without padding."""
    sums = (x if context.valid is None else x * context.valid[..., None]).cumsum(1)
    if state is not None:
        sums = sums + state.total.to(x.dtype)[:, None]
        state.total = sums[:, -1].to(state.total.dtype)
    return sums


class Squared(spec.FeedForward):
    kind: Literal["squared"] = "squared"


class SquaredModule(nn.Module):
    def __init__(self, feedforward: Squared, place: Place) -> None:
        super().__init__()
        self.up = nn.Linear(place.d_model, place.d_model, bias=False)

    def forward(self, x: Tensor, context: ForwardContext, state: LayerState | None = None) -> Tensor:
        y: Tensor = self.up(x).square()
        return y


class Scaled(spec.Norm):
    kind: Literal["scaled"] = "scaled"


class ScaledModule(nn.Module):
    def __init__(self, norm: Scaled, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(features))

    def forward(self, x: Tensor, context: ForwardContext | None = None) -> Tensor:
        return x * self.weight


class SoftSign(spec.Activation):
    kind: Literal["softsign"] = "softsign"
    softness: Positive = 1.0


class SoftSignModule(nn.Module):
    def __init__(self, activation: SoftSign) -> None:
        super().__init__()
        self.softness = activation.softness

    def forward(self, x: Tensor) -> Tensor:
        return x / (self.softness + x.abs())


class LogCosh(spec.Activation):
    kind: Literal["log_cosh"] = "log_cosh"


def log_cosh(activation: LogCosh) -> Any:
    return lambda x: x.cosh().log()


class Cosine(spec.Router):
    kind: Literal["cosine"] = "cosine"


class CosineModule(nn.Module):
    """With parameters of its own."""

    def __init__(self, router: Cosine, num_experts: int, place: Place) -> None:
        super().__init__()
        self.directions = nn.Parameter(torch.empty(num_experts, place.d_model))

    def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
        directions = nn.functional.normalize(self.directions, dim=-1).float()
        return nn.functional.normalize(x, dim=-1).float() @ directions.T

    def affinities(self, logits: Tensor) -> Tensor:
        return (logits + 1) / 2


class Turns(spec.Router):
    kind: Literal["turns"] = "turns"


class TurnsModule(nn.Module):
    """The experts in turn, by the positions of the context."""

    def __init__(self, router: Turns, num_experts: int, place: Place) -> None:
        super().__init__()
        self.num_experts = num_experts

    def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
        first = context.positions.flatten()[:, None]
        return ((first + torch.arange(self.num_experts, device=x.device)) % self.num_experts).float()

    def affinities(self, logits: Tensor) -> Tensor:
        return logits / logits.sum(-1, keepdim=True)


class Numbered(spec.EmbeddingPosition):
    kind: Literal["numbered"] = "numbered"


class NumberedModule(nn.Module):
    def __init__(self, position: Numbered, context_length: int, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model

    def forward(self, positions: Tensor) -> Tensor:
        return positions[..., None].expand(*positions.shape, self.d_model) / 100


class Slope(spec.MixerPosition):
    kind: Literal["slope"] = "slope"


class SlopeModule(ScoreBias):
    def __init__(self, position: Slope, sizes: spec.AttentionSizes) -> None:
        super().__init__()
        self.slopes = nn.Parameter(torch.empty(sizes.num_heads))

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        return -self.slopes[:, None, None] * (queries[:, None, :, None] - keys[:, None, None, :]).abs()


class Even(spec.Pattern):
    kind: Literal["even"] = "even"


class EvenRule(PatternRule[Even]):
    def rule(self, i: Any, j: Any, context: MaskContext) -> Any:
        return (i - j) % 2 == 0


class EverySecond(spec.KeySelection):
    kind: Literal["every_second"] = "every_second"


class EverySecondModule(KeySelector):
    def __init__(self, selection: EverySecond, place: Place, query_features: int) -> None:
        super().__init__()

    def forward(
        self, x: Tensor, queries: Tensor, allowed: Tensor, context: ForwardContext, state: LayerState | None = None
    ) -> Choice:
        return Choice(allowed & (torch.arange(allowed.shape[3], device=x.device) % 2 == 0))


class Ends(spec.Wiring):
    normalizes_input = True
    adds_to_stream = True
    kind: Literal["ends"] = "ends"
    norm: AnyNorm = spec.RMSNorm()


# parts of a model


class Weighed(spec.Residual):
    kind: Literal["weighed"] = "weighed"


class WeighedStream(ResidualStream):
    """x + w F(x), with a weight for each content."""

    def __init__(self, residual: Weighed, place: Place) -> None:
        super().__init__(residual, place)
        self.weight = nn.Parameter(torch.empty(1))

    @staticmethod
    def enter(residual: Weighed, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def leave(residual: Weighed, stream: Tensor) -> Tensor:
        return stream

    def read(self, stream: Tensor, context: ForwardContext) -> Tensor:
        return stream

    def write(self, stream: Tensor, y: Tensor, context: ForwardContext) -> Tensor:
        return stream + self.weight * y


class Factorized(spec.TokenEmbedding):
    """A narrow table, and a projection to the model's width (Lan 2019)."""

    is_table = False
    kind: Literal["factorized"] = "factorized"
    rank: Size = 4


class FactorizedModule(nn.Module):
    def __init__(self, embedding: Factorized, vocab_size: int, context_length: int, d_model: int) -> None:
        super().__init__()
        self.token = Table(vocab_size, embedding.rank, _weight=torch.empty(vocab_size, embedding.rank))
        self.up = Linear(embedding.rank, d_model, bias=False)

    def forward(self, tokens: Tensor, context: ForwardContext, types: Tensor | None = None) -> Tensor:
        y: Tensor = self.up(self.token(tokens))
        return y


class TwoSoftmaxes(spec.Head):
    """The mean of two distributions (Yang 2017)."""

    predicts_next = True
    kind: Literal["two_softmaxes"] = "two_softmaxes"


class TwoSoftmaxesModule(nn.Module):
    def __init__(self, head: TwoSoftmaxes, vocab_size: int, features: int) -> None:
        super().__init__()
        self.first, self.second = (Linear(features, vocab_size, bias=False) for _ in range(2))

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return torch.logaddexp(self.first(x).log_softmax(-1), self.second(x).log_softmax(-1))


class Nearest(spec.Head):
    """Classes by the distances to a vector of each."""

    classifies = True
    kind: Literal["nearest"] = "nearest"
    num_classes: Size = 3


class NearestModule(nn.Module):
    def __init__(self, head: Nearest, vocab_size: int, features: int) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.empty(head.num_classes, features))

    def forward(self, x: Tensor) -> Tensor:
        return -(x[:, None] - self.centres).square().mean(-1)


# a kind of model


class MeanModel(CausalSpec):
    """The head of the mean of all vectors so far."""

    kind: Literal["mean"] = "mean"
    vocab_size: WideSize
    context_length: Length
    d_model: Size
    embedding: AnyTokenEmbedding = spec.Embedding()
    head: NextTokenHead = spec.LanguageModelHead()
    initialization: spec.Initialization = spec.GPT2Initialization()


class MeanModule(CausalModel):
    spec: MeanModel

    def __init__(self, model: MeanModel) -> None:
        super().__init__()
        self.spec = model
        self.embedding = build_embedding(model.embedding, model.vocab_size, model.context_length, model.d_model)
        self.add_head(model.head, model.vocab_size, model.d_model)

    def new_layers(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> list[LayerState]:
        return [SumState(torch.zeros(batch, self.spec.d_model, dtype=dtype, device=device))]

    def forward(
        self,
        tokens: Tensor,
        state: State | None = None,
        num_tokens: Tensor | None = None,
        last_only: bool = False,
        with_logits: bool = True,
    ) -> Output:
        context = ForwardContext.of(tokens, state.lengths if state else None, num_tokens)
        sums = summed(self.embedding(tokens, context), context, state.layers[0] if state else None)
        x = sums / (context.positions[..., None] + 1)
        x = last_tokens(x, context) if last_only else x
        logits = self.lm_head(x, self.token_table) if with_logits else None
        return Output(logits, state.advance(context.ends) if state else None, hidden=x)


class MeanCost(ModelCost):
    def __init__(self, model: MeanModel) -> None:
        super().__init__(model)
        self.d = symbol("D", model.d_model)
        vocabulary = symbol("V", model.vocab_size)
        self.embedding = TokenEmbeddingCost.of(model.embedding, self.d, vocabulary, model.context_length)
        self.head = HeadCost.of(model.head, self.d, model.vocab_size)

    def embedding_parameters(self) -> Counts:
        return {f"embedding.{name}": count for name, count in self.embedding.parameters().items()}

    def state(self, length: int) -> tuple[int, int]:
        return self.d.value, 0

    def saved_activations(self, work: TrainingWork) -> int:
        return work.tokens * INT64 + self.head.saved_activations(work)


# what a recipe names


class SecondToken(ObjectiveConfig):
    kind: Literal["second_token"] = "second_token"

    def suits(self, spec: spec.ModelSpec, data: Data) -> bool:
        return spec.continues_text and isinstance(data, RunningText)

    def build(self, inputs: ObjectiveInputs) -> "SecondTokenObjective":
        return SecondTokenObjective(corpus_of(inputs), inputs.batch_size, inputs.sequence_length, inputs.seed)


class SecondTokenObjective(NextTokenObjective):
    def inputs_and_targets(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        (tokens,) = batch
        return {"tokens": tokens[:, :-2]}, tokens[:, 2:]


class HeavyBall(Optimizer):
    kind: Literal["heavy_ball"] = "heavy_ball"
    momentum: Probability = 0.9

    def build(self, model: nn.Module) -> torch.optim.SGD:
        return torch.optim.SGD(model.parameters(), lr=self.learning_rate, momentum=self.momentum)


class Level(Schedule):
    kind: Literal["level"] = "level"

    def learning_rate(self, peak: float, step: int, num_steps: int) -> float:
        return peak


class Counting(RunningText):
    """The numbers from 0 on."""

    kind: Literal["counting"] = "counting"
    numbers: Size = 200

    def read_texts(self, folder: Any) -> dict[str, str]:
        return {"text": " ".join(map(str, range(self.numbers)))}

    def training_texts(self, texts: dict[str, str]) -> list[str]:
        return [split(text, self.validation_fraction, "end")[0] for text in texts.values()]

    def tokenized(self, texts: dict[str, str], tokenizer: Tokenizer) -> Corpus:
        return corpus(texts["text"], tokenizer, self.validation_fraction, "end")


class Lines(Tracker):
    kind: Literal["lines"] = "lines"

    def package(self) -> None:
        """None is needed."""

    def open(self, run: Run, settings: dict[str, Any], step: int) -> "LinesWriter":
        return LinesWriter(run.folder / "lines.txt")


class LinesWriter(Writer):
    """A line for each measurement."""

    name = "lines"

    def __init__(self, file: Path) -> None:
        self.file = file

    def write(self, records: list[Record]) -> None:
        with self.file.open("a", encoding="utf-8") as lines:
            lines.writelines(f"{step} {sorted(values)}\n" for _, step, values in records)


class DigitsFile(TokenizerFile):
    characters: str


class Digits(JSONTokenizer):
    """Digits and the space between numbers; other ids stand for nothing."""

    kind = "digits"
    fields = DigitsFile
    learns_vocabulary = False

    def __init__(self, characters: str = "0123456789 ") -> None:
        self.characters = characters

    @classmethod
    def train(cls, texts: list[str], vocab_size: int | None, lowercase: bool) -> Self:
        return cls()

    @property
    def vocab_size(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> list[int]:
        return [self.characters.index(character) for character in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.characters[id] for id in ids if id < len(self.characters))

    def token(self, id: int) -> str:
        return self.decode([id])


# what an experiment names


class EveryPair(Decision):
    """The other arm is lower with every seed."""

    kind: Literal["every_pair"] = "every_pair"

    def p_value(self, evidence: Evidence) -> float:
        return float(sign_flip_p(evidence.differences))

    def judge(self, evidence: Evidence, adjusted_p: float) -> Verdict:
        highest = max(evidence.differences)
        result, effect = SHOWN if highest < 0 else NOT_SHOWN, paired_interval(evidence.differences)
        return Verdict(result, f"the highest difference is {highest:+.4g}", effect, adjusted_p=adjusted_p)


archetype.register(RunningMean, module=RunningMeanModule)
archetype.register(Squared, module=SquaredModule)
archetype.register(Scaled, module=ScaledModule)
archetype.register(SoftSign, module=SoftSignModule)
archetype.register(LogCosh, module=log_cosh)
archetype.register(Cosine, module=CosineModule)
archetype.register(Turns, module=TurnsModule)
archetype.register(Numbered, module=NumberedModule)
archetype.register(Slope, module=SlopeModule)
archetype.register(Even, rule=EvenRule)
archetype.register(EverySecond, module=EverySecondModule)
archetype.register(Ends, module=PreNormBlock)
archetype.register(Weighed, module=WeighedStream)
archetype.register(Factorized, module=FactorizedModule)
archetype.register(TwoSoftmaxes, module=TwoSoftmaxesModule)
archetype.register(Nearest, module=NearestModule)
archetype.register(MeanModel, module=MeanModule, cost=MeanCost)
archetype.register(SecondToken)
archetype.register(HeavyBall)
archetype.register(Level)
archetype.register(Counting)
archetype.register(Lines)
archetype.register(EveryPair)
archetype.register(Digits)
