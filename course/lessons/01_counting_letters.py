# %% [markdown]
# # 1. Counting letters
#
# **Question.** How well can a table of counts predict the next letter, and what does a network add to it?
#
# A language model gives each next token a probability. The oldest way to get one is to count. In this lesson you
# count pairs and triples of letters, measure the result with *perplexity*, put the counts into a network that
# gives the same probabilities, and see why longer tables do not help.
# %% [markdown]
# ## The text
#
# The text is Python's documentation of its own types, so nothing is downloaded. (Other versions of Python have
# slightly different documentation, so your numbers may differ slightly from those below.)
# %%
import math
import pydoc
from collections import Counter

import archetype

text = "".join(pydoc.plain(pydoc.render_doc(kind)) for kind in (str, list, dict, int, float, bytes, set))
letters = sorted(set(text))
V = len(letters)
id_of = {letter: index for index, letter in enumerate(letters)}
ids = torch.tensor([id_of[letter] for letter in text])
split = len(ids) * 9 // 10
train, test = ids[:split], ids[split:]
print(f"{len(train):,} letters for training, {len(test):,} for testing, {V} distinct")
# %% [markdown]
# ## Predict
#
# *Perplexity* is $e^{-\text{mean} \log p}$: a model with perplexity 10 is as uncertain as one that always chooses
# among 10 equally likely letters. A uniform guess has perplexity $V$, the number of different letters. If you know
# the previous letter, and how often each letter followed it in the training text, what is the perplexity on the
# test text? Write down your guess.
# %%
prediction = None
# %% [markdown]
# ## By hand
#
# `counts[a, b]` says how often `b` followed `a`. A pair that was never seen would have probability zero, and one
# such pair makes the perplexity infinite. So every count starts at $k$ (Laplace smoothing):
#
# $$p(b \mid a) = \frac{c(a, b) + k}{\sum_{b'} c(a, b') + k V}$$
# %%
counts = torch.zeros(V, V)
counts.index_put_((train[:-1], train[1:]), torch.tensor(1.0), accumulate=True)


def smoothed(counts, k):
    return (counts + k) / (counts + k).sum(-1, keepdim=True)


def perplexity(probabilities):
    return math.exp(-probabilities.log().mean())


bigram = smoothed(counts, k=0.1)
by_hand = perplexity(bigram[test[:-1], test[1:]])
reveal(prediction, by_hand)
# %% [markdown]
# ## The same with Archetype
#
# A bigram model is a network without hidden layers: the vector of a token times a matrix gives the logits of the
# next token. If the vectors are the rows of the identity matrix and the matrix holds $\log p$, the softmax returns
# the table.
# %%
spec = {"kind": "ngram", "name": "bigram", "vocab_size": V, "context_length": len(test), "n": 1, "d_model": V}
model = archetype.build(spec)
with torch.no_grad():
    model.embedding.token.weight.copy_(torch.eye(V))
    model.lm_head.weight.copy_(bigram.log().T)
    model.lm_head.bias.zero_()
    logits = model(test[None, :-1]).logits[0]
    loss = torch.nn.functional.cross_entropy(logits, test[1:])
print(f"table {by_hand:.6f}, network {math.exp(loss):.6f}")
torch.testing.assert_close(logits.softmax(-1), bigram[test[:-1]])
# %% [markdown]
# Usually nobody writes the table into a network: gradient descent finds it. The loss on the training text cannot
# fall below the entropy of the counts themselves, and it comes close.
# %%
learner = archetype.build(spec, seed=1)
shares = counts / counts.sum()
each = torch.arange(V)[None]
losses = fit(lambda: -(shares * learner(each).logits[0].log_softmax(-1)).sum(), learner.parameters(), 200, rate=0.1)
entropy = -(shares * smoothed(counts, 1e-9).log()).sum().item()
print(f"entropy of the counts {entropy:.4f} nats, loss after training {losses[-1]:.4f}")
# %% [markdown]
# ## Longer tables
#
# If one letter helps, more letters should help more. On the training text they do.
# %%
numbers = ids.tolist()


def ngram_perplexity(n, tokens, k=0.1):
    """Perplexity on tokens of an n-gram table counted on the training text."""
    pasts = Counter(tuple(numbers[i : i + n - 1]) for i in range(split - n + 1))
    known = Counter(tuple(numbers[i : i + n]) for i in range(split - n + 1))
    sequence = tokens.tolist()
    grams = [tuple(sequence[i : i + n]) for i in range(len(sequence) - n + 1)]
    return perplexity(torch.tensor([(known[gram] + k) / (pasts[gram[:-1]] + k * V) for gram in grams]))


orders = range(1, 8)
seen = [ngram_perplexity(n, train, k=0) for n in orders]  # every n-gram of this text has been counted
unseen = [ngram_perplexity(n, test) for n in orders]
# %% [markdown]
# ## A network with a memory
#
# An LSTM reads all previous letters, but its size does not grow with their number. It shares what it learns
# between similar contexts, which a table cannot do.
# %%
lstm = archetype.build(
    {
        "kind": "decoder", "vocab_size": V, "context_length": 4096, "d_model": 128,
        "layers": [{"wiring": {"kind": "plain"}, "mixer": {"kind": "lstm"}}],
    }
)  # fmt: skip


def next_letter_loss():
    starts = torch.randint(split - 65, (32,))
    batch = train[starts[:, None] + torch.arange(65)]
    return torch.nn.functional.cross_entropy(lstm(batch[:, :-1]).logits.flatten(0, 1), batch[:, 1:].flatten())


fit(next_letter_loss, lstm.parameters(), 300, rate=1e-2)
with torch.no_grad():
    unread = test[: len(test) // 256 * 256 + 1]
    logits = lstm(unread[None, :-1][:, :4096]).logits[0]
    lstm_perplexity = math.exp(torch.nn.functional.cross_entropy(logits, unread[1 : len(logits) + 1]))

figure, axis = plt.subplots(figsize=(6, 3))
axis.semilogy(orders, seen, "o-", label="table, training text")
axis.semilogy(orders, unseen, "o-", label="table, test text")
axis.axhline(lstm_perplexity, color="C2", linestyle="--", label="LSTM, test text")
axis.set(xlabel="n, letters per table entry", ylabel="perplexity")
axis.legend()
sizes = archetype.cost_report(lstm.spec).parameters["total"]
print(f"best table {min(unseen):.2f} with n = {orders[unseen.index(min(unseen))]}; LSTM {lstm_perplexity:.2f}")
print(f"entries of a table with n = 4: {V**4:,}; parameters of the LSTM: {sizes:,}")


# %% [markdown]
# ## What you have seen
#
# * Perplexity: $\exp\left(-\frac{1}{N} \sum_i \log p(x_i \mid x_{<i})\right)$; that of a uniform guess is $V$.
# * A bigram table is a network with one matrix. Trained by gradient descent, it approaches the counts.
# * A table of $n$ letters has $V^n$ entries, most of them empty. Beyond some $n$ it memorizes the training text
#   and gets worse on new text. Networks replace the table with a function that has few parameters.
# %% [markdown]
# ## Exercises
#
# Fill in a cell, run it, then run the check below it.
#
# **1.** Mix two models: return the perplexity of $w\,p_3 + (1 - w)\,p_2$, given the probabilities that each model
# gave to the tokens of a text.
# %% exercise 1
def mixed_perplexity(p2, p3, w):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 1
with exercise(1):
    p2, p3 = torch.tensor([0.5, 0.01, 0.2]), torch.tensor([0.9, 0.001, 0.6])
    assert abs(mixed_perplexity(p2, p3, 0.0) - 10.0) < 1e-3
    assert abs(mixed_perplexity(p2, p3, 0.5) - (0.7 * 0.0055 * 0.4) ** (-1 / 3)) < 1e-3
    assert mixed_perplexity(p2, p3, 0.5) < min(mixed_perplexity(p2, p3, w) for w in (0.0, 1.0))


# %% [markdown]
# **2.** What share of the n-grams in the test text does not occur in the training text? Use `train` and `test`.
# %% exercise 2
def unseen_share(n):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 2
with exercise(2):
    assert unseen_share(1) < unseen_share(3) < unseen_share(6) < 1
    pairs = counts[test[:-1], test[1:]]
    assert abs(unseen_share(2) - (pairs == 0).double().mean()) < 1e-6


# %% [markdown]
# **3.** Bengio's model (2003) reads the vectors of the last $n$ tokens, $D$ features each, through a hidden layer
# of $F$ features with a bias, then a matrix with a bias to $V$ logits. How many parameters does it have, including
# the table of vectors?
# %% exercise 3
def bengio_parameters(V, n, D, F):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 3
with exercise(3):
    for V_, n, D, F in ((50, 3, 16, 32), (1000, 5, 60, 50)):
        sizes = {"vocab_size": V_, "context_length": 8, "n": n, "d_model": D, "hidden": [F]}
        assert bengio_parameters(V_, n, D, F) == archetype.cost_report({"kind": "ngram"} | sizes).parameters["total"]
