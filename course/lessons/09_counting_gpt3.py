# %% [markdown]
# # 9. Counting GPT-3
#
# **Question.** Where are the 175 billion parameters of GPT-3, and what does it cost to train and to run?
#
# You count a Transformer with a pencil, check each number against Archetype's cost model, which builds nothing,
# and see how each cost grows.
# %% [markdown]
# ## Predict
#
# GPT-3 has $L = 96$ layers of width $D = 12288$, a vocabulary of $V = 50257$ and 2,048 positions. A layer has four
# $D \times D$ matrices of attention and two matrices between $D$ and $4D$. What share of all parameters is in
# attention?
# %%
prediction = None
# %% [markdown]
# ## Parameters by hand
#
# * attention: $4 D^2 + 4 D$ (matrices $W_q, W_k, W_v, W_o$ with biases)
# * feed-forward: $8 D^2 + 5 D$
# * two LayerNorms: $4 D$
#
# Together these are $12 D^2 + 13 D$ per layer. Outside the layers there are the token embedding $V D$, which is
# also used for the logits, the position embedding $2048\, D$, and a final norm $2 D$.
# %%
import archetype

L, D, V, T = 96, 12288, 50257, 2048
attention, feedforward, norms = L * (4 * D**2 + 4 * D), L * (8 * D**2 + 5 * D), (L * 4 + 2) * D
embeddings = (V + T) * D
total = attention + feedforward + norms + embeddings
reveal(prediction, attention / total)

report = archetype.cost_report("gpt3-175b")
assert report.parameters["total"] == total
print(f"{total:,} parameters, by hand and by Archetype")
print(f"L (12 D^2) alone is {L * 12 * D**2 / total:.1%} of them")
# %%
archetype.draw("gpt3-175b", length=T)
# %% [markdown]
# ## FLOPs by hand
#
# A product with a matrix of $n$ parameters takes $2 n$ FLOPs per token: a multiplication and an addition for each
# parameter. Attention between tokens comes on top: $2 T D$ for the scores and $2 T D$ for the weighted sum of
# values in each layer.
# %%
matrices = L * 12 * D**2 + V * D  # the token embedding also computes the logits
forward = T * (2 * matrices + L * 4 * T * D)
gpt3 = archetype.load_spec("gpt3-175b")
dense = archetype.cost_report(gpt3.replace(layers=[gpt3.layers[0]] * L), length=T)
assert dense.flops["forward"] == forward
print(f"a sequence of {T:,} tokens: {forward:.3e} FLOPs; {forward / T / total:.3f} FLOPs per token and parameter")
sparse = archetype.cost_report(gpt3, length=T, attention="allowed")
print(f"as published, with alternating sparse layers, counting only allowed pairs: {sparse.flops['forward']:.3e}")
# %% [markdown]
# The backward pass takes twice as many FLOPs as the forward pass, because it multiplies by each matrix twice: once
# for the gradient of the input and once for that of the matrix. Hence the rule of thumb for training: **$6 N$
# FLOPs per token**. GPT-3 was trained on 300 billion tokens.
# %%
tokens = 300e9
training = 3 * forward / T * tokens
rule = 6 * total * tokens
a100 = 312e12 * 0.4  # FLOPs per second in bfloat16, at 40 % utilization
print(f"training: {training:.3e} FLOPs; rule of thumb {rule:.3e}")
print(f"on 1,024 A100: {training / a100 / 1024 / 86400:.0f} days")
# %% [markdown]
# ## Where the work goes as sequences grow
#
# Attention between tokens grows with $T^2$, everything else with $T$. At what length is it half of the work?
# %%
lengths = [2**power for power in range(9, 18)]
between = [4 * length * D * L for length in lengths]  # per token
products = 2 * matrices
shares = [pairs / (pairs + products) for pairs in between]
figure, axis = plt.subplots(figsize=(5.5, 2.8))
axis.semilogx(lengths, shares, "o-")
axis.axhline(0.5, color="gray", linestyle=":")
axis.set(xlabel="sequence length T", ylabel="share of query-key pairs", ylim=(0, 1))
figure.tight_layout()
print(f"half at T = {products / (4 * D * L):,.0f}, about 6 D")
# %% [markdown]
# ## Memory
#
# Weights in 16 bits take 2 bytes per parameter. Training with Adam keeps, in 32 bits, the weights, gradients and
# two moments: 16 bytes per parameter. The cache has $2 L D$ numbers per token.
# %%
GiB = 2**30
by_hand = {"weights": 2 * total, "training_state": 16 * total, "cache": 2 * L * D * T * 2}
counted = dict(dense.memory, cache=dense.state["bytes"])
for name, count in by_hand.items():
    print(f"{name:15} {count / GiB:8.1f} GiB by hand, {counted[name] / GiB:8.1f} GiB by Archetype")
    assert count == counted[name]
# %% [markdown]
# ## Scaling a model
#
# GPT-3's eight sizes go from 125 M to 175 B. Width and depth grow together; the parameters follow $12 L D^2$ once
# the embeddings no longer matter.
# %%
names = [name for name in archetype.presets() if name.startswith("gpt3-") and "tiny" not in name]
print(f"{'':10} {'layers':>6} {'width':>6} {'parameters':>16} {'12 L D^2':>9}")
for name in names:
    spec = archetype.load_spec(name)
    count = archetype.cost_report(name).parameters["total"]
    layers, width = spec.num_layers, spec.d_model
    print(f"{name:10} {layers:6} {width:6} {count:16,} {12 * layers * width**2 / count:9.1%}")


# %% [markdown]
# ## What you have seen
#
# $$N = L\,(12 D^2 + 13 D) + (V + T)\,D + 2D, \qquad
# \text{FLOPs} = \underbrace{2 T\,(12 L D^2 + V D)}_{\text{matrices}} + \underbrace{4 L T^2 D}_{\text{pairs}}$$
#
# * Two thirds of a layer are its feed-forward part.
# * Training takes $6N$ FLOPs per token, a forward pass $2N$; attention's pairs matter from $T \approx 6D$ on.
# * Adam's state is eight times the weights in 16 bits.
# %% [markdown]
# ## Exercises
#
# **1.** Return the number of parameters of a GPT with `L` layers, width `D`, vocabulary `V` and `T` positions.
# %% exercise 1
def gpt_parameters(L, D, V, T):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 1
with exercise(1):
    for name in ("gpt2", "gpt2-xl", "gpt3-13b"):
        spec = archetype.load_spec(name)
        count = gpt_parameters(spec.num_layers, spec.d_model, spec.vocab_size, spec.context_length)
        assert count == archetype.cost_report(name).parameters["total"], name


# %% [markdown]
# **2.** Hoffmann (2022) found that with a budget of $C = 6 N M$ FLOPs it is best to train on about 20 tokens per
# parameter: $M = 20 N$. Return the number of parameters $N$ for a budget.
# %% exercise 2
def chinchilla_parameters(budget):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 2
with exercise(2):
    assert abs(chinchilla_parameters(5.76e23) / 70e9 - 1) < 0.03  # Chinchilla itself
    assert chinchilla_parameters(rule) < total / 3


# %% [markdown]
# **3.** When a model generates, each token reads all weights from memory once. A GPU reads `bandwidth` bytes per
# second. What is the largest number of tokens per second for one sequence if the weights take 2 bytes per parameter?
# %% exercise 3
def tokens_per_second(parameters, bandwidth):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 3
with exercise(3):
    assert abs(tokens_per_second(8e9, 3.2e12) - 200) < 1e-6
    assert tokens_per_second(total, 2e12) < 6
