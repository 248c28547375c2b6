"""The trained LSTM encoder-decoder of g2p-fa, read into ours: pronunciations of Persian words as by its own program."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import archetype
from archetype.families.seq2seq import seq2seq
from archetype.generate.beam import beam_search
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.settings.generation import Beam
from tests.helpers.packages import install, run_python
from tests.helpers.published import EXACT, WRONG
from tests.helpers.weights import distance

START, END = 1, 2
NUM_LETTERS, NUM_SOUNDS, LENGTH = 41, 33, 30  # sources are padded to 30 letters, and the padding is read
LIST = """
سلام کتاب مدرسه ایران دانشگاه خانه پدر مادر برادر خواهر دوست شهر کوه دریا آسمان زمین ستاره خورشید باران برف
درخت گل میوه سیب انگور پرتقال نان آب چای قهوه غذا شام صبح شب روز هفته ماه سال زمان ساعت
دست پا چشم گوش دهان دندان سر قلب خون جان مرد زن کودک جوان پیر شاه وزیر سرباز جنگ صلح
کار پول بازار مغازه خیابان ماشین قطار هواپیما کشتی راه سفر تهران شیراز اصفهان تبریز مشهد قلم کاغذ میز صندلی
پنجره دیوار سقف چراغ آینه لباس کفش کلاه رنگ سبز سرخ زرد سیاه سفید بزرگ کوچک بلند کوتاه خوب زیبا
"""
WORDS = LIST.split()
PROGRAM = """
import json, sys
from g2p_fa.g2p_fa import G2P_Fa
from g2p_fa.utils import IPA2tensor, IPA_LETTERS, word2tensor
program = G2P_Fa(checkpoint=sys.argv[1])
program.model.eval()  # which it does not say by itself
for word in sys.argv[2:]:
    source = word2tensor(word)
    sounds = program.model(source[:, None], IPA2tensor("b")[:, None], 0).argmax(2)[1:, 0].tolist()
    sounds = sounds[:sounds.index(2)]
    assert "".join(IPA_LETTERS[sound - 3] for sound in sounds) == program(word)
    print(json.dumps([source.tolist(), sounds]))
"""
Weights = dict[str, Tensor]


@pytest.fixture
def file(shared: Path) -> Path:
    return shared / "published/weights/g2p-fa-lstm-seq2seq/weights"


@pytest.fixture
def theirs(file: Path) -> Weights:
    weights: Weights = torch.load(file, map_location="cpu", weights_only=True)
    return weights


def ported(theirs: Weights) -> EncoderDecoder:
    """Our model of these weights: the embeddings of 40 features are padded with zeros to the width of 256."""
    model = archetype.build(
        seq2seq(
            num_layers=2, d_model=256, vocab_size=NUM_SOUNDS, source_vocab_size=NUM_LETTERS, context_length=LENGTH + 2
        )
    )
    assert isinstance(model, EncoderDecoder)

    def wide(name: str) -> Tensor:
        return nn.functional.pad(theirs[name], (0, 256 - theirs[name].shape[1]))

    weights = {
        "source_embedding.token.weight": wide("encoder.embedding.weight"),
        "embedding.token.weight": wide("decoder.embedding.weight"),
        "lm_head.weight": theirs["decoder.fc_out.weight"],
        "lm_head.bias": theirs["decoder.fc_out.bias"],
    }
    for stack in ("encoder", "decoder"):
        for layer in range(2):
            cell = f"{stack}.blocks.{layer}.mixer.cell"
            weights[f"{cell}.weight_ih_l0"] = wide(f"{stack}.rnn.weight_ih_l{layer}")
            for name in ("weight_hh", "bias_ih", "bias_hh"):
                weights[f"{cell}.{name}_l0"] = theirs[f"{stack}.rnn.{name}_l{layer}"]
    assert len(weights) == len(theirs)
    model.load_state_dict(weights)
    return model.eval()


def by_torch(theirs: Weights, source: Tensor, target: Tensor) -> Tensor:
    """The logits of targets by torch's own LSTMs of two layers."""
    state, outputs = None, torch.empty(0)
    for stack, tokens in (("encoder", source), ("decoder", target)):
        lstm = nn.LSTM(40, 256, num_layers=2, batch_first=True)
        prefix = f"{stack}.rnn."
        lstm.load_state_dict({k.removeprefix(prefix): v for k, v in theirs.items() if k.startswith(prefix)})
        outputs, state = lstm(theirs[f"{stack}.embedding.weight"][tokens], state)
    return nn.functional.linear(outputs, theirs["decoder.fc_out.weight"], theirs["decoder.fc_out.bias"])


@torch.no_grad()
def test_logits_are_those_of_torch(theirs: Weights) -> None:
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(3, NUM_LETTERS, (20, LENGTH), generator=generator)
    target = torch.randint(3, NUM_SOUNDS, (20, 12), generator=generator)
    expected, model = by_torch(theirs, source, target), ported(theirs)
    assert distance(model(target, source=source).logits, expected) < EXACT
    swapped = theirs | {"encoder.rnn.bias_hh_l1": theirs["encoder.rnn.bias_hh_l1"].roll(256)}  # another gate's
    assert distance(ported(swapped)(target, source=source).logits, expected) > WRONG


@pytest.mark.slow
def test_words_are_pronounced_as_by_its_own_program(file: Path, theirs: Weights, tmp_path: Path) -> None:
    assert len(set(WORDS)) == 100
    printed = run_python(PROGRAM, install(tmp_path / "installed", "g2p-fa"), str(file), *WORDS)
    rows = [json.loads(line) for line in printed.splitlines()]
    settings = Beam(num_beams=1)
    ours = beam_search(ported(theirs), [source for source, _ in rows], START, END, settings)
    assert ours == [sounds for _, sounds in rows]
    assert len({*map(tuple, ours)}) > 90
