# %% [markdown]
# # 3. Attention by hand
#
# **Question.** What does one attention layer compute, number by number?
#
# You build a differentiable dictionary, turn it into causal attention with several heads, and reproduce the
# numbers of Archetype's layer. Then you see why scores are scaled by $1/\sqrt{P}$.
# %% [markdown]
# ## A dictionary with soft keys
#
# A dictionary returns the value whose key equals the query. With vectors we can relax this and return a mean of
# *all* values, in which a value has more weight if its key is closer to the query. Closeness is a dot product, and
# the softmax turns it into positive weights that sum to one.
# %%
import math

import archetype
from archetype.extend import ForwardContext

keys = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
values = torch.tensor([[1.0, 1.0], [-1.0, 1.0]])


def look_up(query, keys, values):
    weights = (keys @ query).exp()
    weights = weights / weights.sum()
    return weights @ values


for size in (1, 5, 20):
    print(size, look_up(size * torch.tensor([1.0, 0.0]), keys, values))
# %% [markdown]
# The larger the query, the closer the mean is to the value of the nearest key.
#
# ## Predict
#
# In attention, queries, keys and values are three products of the same vectors. The queries and keys of a head
# have $P$ features. If these are independent with variance 1, what is the variance of the score $q \cdot k$ for
# $P = 64$?
# %%
prediction = None
# %%
P = 64
scores = (torch.randn(100_000, P) * torch.randn(100_000, P)).sum(-1)
reveal(prediction, scores.var().item())
# %% [markdown]
# So scores are divided by $\sqrt{P}$, which makes their variance 1 for every $P$. We come back to what happens
# without this.
#
# ## Every head, every pair, in loops
#
# The query at position $i$ may attend to the keys of positions $j \le i$ only, because the later tokens are what
# the model has to predict. Each of the $H$ heads does this with its own slice of the features, and a final matrix
# mixes the heads.
# %%
D, H, T = 32, 4, 6
layer = {"wiring": {"kind": "plain"}, "mixer": {"kind": "attention", "num_heads": H}}
sizes = {"vocab_size": 100, "context_length": 64, "d_model": D}
model = archetype.build({"kind": "decoder", **sizes, "layers": [layer], "initialization": {"kind": "xavier"}})
attention = model.blocks[0].mixer


@torch.no_grad()
def attend(x):
    """Causal attention of T vectors, (T, D), with loops over heads and positions."""
    length, P = len(x), D // H
    mixed = torch.zeros(length, D)
    for head in range(H):
        features = slice(head * P, (head + 1) * P)
        q, k, v = (x @ linear.weight[features].T for linear in (attention.q, attention.k, attention.v))
        for i in range(length):
            scores = torch.stack([q[i] @ k[j] / math.sqrt(P) for j in range(i + 1)])
            weights = scores.exp() / scores.exp().sum()
            for j in range(i + 1):
                mixed[i, features] += weights[j] * v[j]
    return mixed @ attention.o.weight.T


x = torch.randn(1, T, D)
with torch.no_grad():
    y = attention(x, ForwardContext.of(x))
torch.testing.assert_close(attend(x[0])[None], y)
print("largest difference between loops and layer:", (attend(x[0]) - y[0]).abs().max().item())
# %% [markdown]
# ## Look inside
#
# `inspect` records a forward pass. For one head it returns the scores, the masked scores and the weights.
# %%
lm = archetype.LanguageModel(model.spec, model)
tokens = torch.randint(100, (16,))
head = lm.inspect(tokens).attention(layer=0, head=2).tensors()
figure, axes = plt.subplots(1, 3, figsize=(7, 2.4))
for axis, name in zip(axes, ("scores", "masked", "weights"), strict=True):
    axis.imshow(head[name], cmap="viridis")
    axis.set(title=name, xticks=[], yticks=[])
    axis.set_xlabel("key")
axes[0].set_ylabel("query")
figure.tight_layout()
# %% [markdown]
# ## Order
#
# Nothing in the formula knows the position of a key; only the mask does. Without it, in an encoder, permuted
# inputs give the same outputs, permuted. Lesson 4 gives positions to attention.
# %%
layer = layer | {"feedforward": {"kind": "mlp", "d_ff": 64, "activation": "relu"}}
encoder = archetype.build({"kind": "encoder", **sizes, "layers": [layer]})
order = torch.randperm(16)
with torch.no_grad():
    plain = encoder(tokens[None]).hidden[0]
    permuted = encoder(tokens[order][None]).hidden[0]
torch.testing.assert_close(plain[order], permuted)
print("permuted tokens, permuted vectors")
# %% [markdown]
# ## Why the scores are scaled
#
# The gradient of the softmax is $\operatorname{diag}(p) - p p^\top$. Where one weight is nearly 1, the gradient is
# nearly zero, and nothing can be learned.
# %%
widths, largest, slopes = [4, 16, 64, 256, 1024], {}, {}
for name, power in (("scaled", 0.5), ("not scaled", 0.0)):
    largest[name], slopes[name] = [], []
    for P in widths:
        q, k = torch.randn(200, 1, P), torch.randn(200, 32, P)
        p = ((q * k).sum(-1) / P**power).softmax(-1)
        jacobian = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        largest[name].append(p.max(-1).values.mean())
        slopes[name].append(jacobian.flatten(1).norm(dim=-1).mean())
figure, axes = plt.subplots(1, 2, figsize=(7, 2.6))
for axis, curves, label in zip(axes, (largest, slopes), ("largest weight", "norm of the Jacobian"), strict=True):
    for name, numbers in curves.items():
        axis.semilogx(widths, numbers, "o-", label=name)
    axis.set(xlabel="features of a head, P", ylabel=label)
axes[0].legend()
figure.tight_layout()


# %% [markdown]
# ## What you have seen
#
# $$\operatorname{Attention}(Q, K, V) = \operatorname{softmax}\left(\frac{Q K^\top}{\sqrt P} + M\right) V,
# \qquad M_{ij} = \begin{cases} 0 & j \le i \\ -\infty & j > i \end{cases}$$
#
# * A head is a dictionary whose keys, values and queries are learned; the mask keeps it from seeing the future.
# * Without positions and mask, attention sees a set and not a sequence.
# * Without $1/\sqrt P$ the softmax saturates as heads grow, and its gradient vanishes.
# %% [markdown]
# ## Exercises
#
# **1.** Write attention without loops, for `q`, `k`, `v` of shape (H, T, P). Return the (H, T, P) outputs of all
# heads.
# %% exercise 1
def heads(q, k, v):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 1
with exercise(1):
    trace = lm.trace(tokens).run()
    q, k, v = (trace[f"blocks.0.mixer.{name}"][0] for name in "qkv")
    torch.testing.assert_close(heads(q, k, v), trace["blocks.0.mixer.heads"][0])


# %% [markdown]
# **2.** Change attention so that the weights of a query are taken from the *three* highest allowed scores only.
# Given one row of `scores` for the allowed keys, return the weights.
# %% exercise 2
def top_three_weights(scores):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 2
with exercise(2):
    row = torch.tensor([0.0, 3.0, 1.0, 2.0])
    expected = torch.tensor([0.0, *torch.tensor([3.0, 1.0, 2.0]).softmax(-1)])
    torch.testing.assert_close(top_three_weights(row), expected)
    torch.testing.assert_close(top_three_weights(row[:2]), row[:2].softmax(-1))


# %% [markdown]
# **3.** How many FLOPs do the four projections, the scores and the weighted sum of values take for a sequence of
# `T` tokens? A multiplication and an addition are two FLOPs; count all pairs, masked or not.
# %% exercise 3
def attention_flops(T, D):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 3
with exercise(3):
    for T in (8, 64):
        counted = archetype.cost_report(model.spec, length=T).records()
        assert attention_flops(T, D) == sum(row["forward"] for row in counted if ".mixer" in row["module"])
