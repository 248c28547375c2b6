# %% [markdown]
# # 4. Positions
#
# **Question.** How can attention know the order of tokens, and what happens beyond the length that it was trained
# on?
#
# You add sinusoids, rotate queries and keys (RoPE), and bias scores (ALiBi). For each you check the property it
# was designed for. Then you train small models on short texts and evaluate them on longer ones.
# %% [markdown]
# ## Sinusoids
#
# The first Transformer adds to the vector of position $i$ the features $\sin(i\,\omega_j)$ and
# $\cos(i\,\omega_j)$, with $\omega_j = 10000^{-2j/D}$.
# %%
import math

import archetype
from archetype.extend import ForwardContext

D = 64


def sinusoid(i):
    frequencies = 10_000.0 ** (-torch.arange(0, D, 2) / D)
    return torch.stack((torch.sin(i * frequencies), torch.cos(i * frequencies)), dim=-1).flatten()


def decoder(mixer=None, embedding=None, length=512, layers=1, V=100):
    block = {
        "wiring": {"kind": "pre_norm", "norm": "rms"},
        "mixer": {"kind": "attention", "num_heads": 4, **(mixer or {})},
        "feedforward": {"kind": "mlp", "d_ff": 2 * D, "activation": "gelu"},
    }
    sizes = {"vocab_size": V, "context_length": length, "d_model": D, "embedding": embedding or {}}
    return archetype.build({"kind": "decoder", **sizes, "layers": [block] * layers, "final_norm": "rms"})


position = decoder(embedding={"position": "sinusoidal"}).embedding.position
table = position(torch.arange(512)[None])[0]
torch.testing.assert_close(table[7], sinusoid(7))
products = table @ table.T
print(f"PE(3).PE(10) = {products[3, 10]:.4f}, PE(303).PE(310) = {products[303, 310]:.4f}")
# sines of angles up to 500 have an error of about 3e-5 in float32, and a product sums many of them
torch.testing.assert_close(products.diagonal(7), products[3, 10].expand(505), rtol=1e-3, atol=1e-3)
# %% [markdown]
# The product of two positions depends only on their distance: $\sum_j \cos((i - k)\,\omega_j)$. But this holds for
# the position vectors themselves. In a model they are added to token vectors and pass through matrices first.
#
# ## Rotations
#
# RoPE builds the property into the score. Each pair of features of a query or key is rotated by the angle
# $i\,\omega_j$. Rotating both by the same additional angle does not change their product.
# %%


def rotate(x, i, theta=10_000.0):
    """Rotate a vector of P features at position i; feature j is paired with feature j + P/2."""
    P = len(x)
    angles = i * theta ** (-torch.arange(0, P, 2, dtype=x.dtype) / P)
    a, b = x[: P // 2], x[P // 2 :]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()))


model = decoder({"position": "rotary"})
tokens = torch.randint(100, (40,))
trace = archetype.LanguageModel(model.spec, model).trace(tokens).run()
x, mixer = trace["blocks.0.mixer.in"][0], model.blocks[0].mixer
with torch.no_grad():
    by_hand = rotate(mixer.q(x)[25].unflatten(0, (4, -1))[2], 25)
torch.testing.assert_close(by_hand, trace["blocks.0.mixer.q"][0, 2, 25])
print("query of head 2 at position 25, rotated by hand: equal")
# %% [markdown]
# ## Predict
#
# The query $q$ is at position 10 and the key $k$ at position 3; their score is $s$. Both move forward by 100
# positions. By how much does the score change? And what if only the key moves?
# %%
prediction = None
# %%
q, k = torch.randn(64, dtype=torch.float64), torch.randn(64, dtype=torch.float64)
here, both, key_alone = rotate(q, 10) @ rotate(k, 3), rotate(q, 110) @ rotate(k, 103), rotate(q, 10) @ rotate(k, 103)
reveal(prediction, (both - here).abs().item())
print(f"score {here:.6f}; both moved {both:.6f}; only the key moved {key_alone:.6f}")
# %% [markdown]
# ## Biases
#
# ALiBi leaves the vectors alone and subtracts from each score the distance times a slope, which differs from head
# to head: $s_{ij} = q_i \cdot k_j / \sqrt P - m_h (i - j)$.
# %%
biased, plain = decoder({"position": "alibi"}), decoder()
biased.load_state_dict(plain.state_dict())  # a bias has no parameters
heads = {}
for name, variant in (("alibi", biased), ("none", plain)):
    lm = archetype.LanguageModel(variant.spec, variant)
    heads[name] = [lm.inspect(tokens).attention(layer=0, head=h).tensors()["masked"] for h in range(4)]
slopes = [(heads["alibi"][h] - heads["none"][h])[39, 38].item() for h in range(4)]
print("subtracted one step back, by head:", [round(-slope, 5) for slope in slopes])

figure, axes = plt.subplots(1, 2, figsize=(7, 2.6))
distances = torch.arange(200)
rotated = torch.stack([rotate(torch.ones(64), i) for i in distances])
axes[0].plot(distances, rotated @ torch.ones(64) / 64)
axes[0].set(title="RoPE: q = k = 1", xlabel="distance", ylabel="score")
for slope in slopes:
    axes[1].plot(distances, slope * distances)
axes[1].set(title="ALiBi: bias of 4 heads", xlabel="distance")
figure.tight_layout()
# %% [markdown]
# ## Beyond the trained length
#
# Four models are trained on the letters of Python's own documentation in sequences of 32. Then they read sequences
# of 256, and we look at the loss by position.
# %%
import pydoc

text = "".join(pydoc.plain(pydoc.render_doc(kind)) for kind in (str, list, dict, bytes))
letters = sorted(set(text))
ids = torch.tensor([letters.index(letter) for letter in text])
SHORT, LONG = 32, 256
arms = {
    "sinusoidal": ({}, {"position": "sinusoidal"}),
    "rotary": ({"position": "rotary"}, {}),
    "ALiBi": ({"position": "alibi"}, {}),
    "none": ({}, {}),
}


def batch_of(length, count):
    starts = torch.randint(len(ids) - length - 1, (count,))
    return ids[starts[:, None] + torch.arange(length + 1)]


figure, axis = plt.subplots(figsize=(6, 3))
for name, (mixer, embedding) in arms.items():
    torch.manual_seed(0)
    arm = decoder(mixer, embedding, LONG, layers=2, V=len(letters))

    def loss_by_position(batch, arm=arm):
        logits = arm(batch[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch[:, 1:], reduction="none").mean(0)

    fit(lambda by_position=loss_by_position: by_position(batch_of(SHORT, 16)).mean(), arm.parameters(), 300)
    with torch.no_grad():
        losses = loss_by_position(batch_of(LONG, 64))
    within, beyond = losses[8:SHORT].mean(), losses[LONG // 2 :].mean()
    axis.plot(losses.unfold(0, 8, 8).mean(-1), label=name)
    print(f"{name:10}  loss up to {SHORT}: {within:.3f}; from {LONG // 2} to {LONG}: {beyond:.3f}")
axis.axvline(SHORT / 8, color="gray", linestyle=":")
axis.set(xlabel="position / 8", ylabel="loss, nats")
axis.legend()
figure.tight_layout()


# %% [markdown]
# ## What you have seen
#
# * Sinusoids: $\operatorname{PE}(i) \cdot \operatorname{PE}(k)$ depends on $i - k$, but the layers that follow
#   destroy this property.
# * RoPE: $(R_i q) \cdot (R_k k) = q \cdot R_{k-i}\, k$, exactly, in every layer, without parameters.
# * ALiBi: $-m_h (i - j)$; distant keys get less weight at any length, which is why it works beyond the trained
#   length.
# * A causal mask alone tells a model something about the order.
# %% [markdown]
# ## Exercises
#
# **1.** The slopes of ALiBi for $H$ heads (a power of two) are $2^{-8/H}, 2^{-16/H}, \dots, 2^{-8}$. Return them.
# %% exercise 1
def alibi_slopes(H):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 1
with exercise(1):
    assert all(abs(mine + theirs) < 1e-4 for mine, theirs in zip(alibi_slopes(4), slopes, strict=True))
    assert len(alibi_slopes(8)) == 8 and abs(alibi_slopes(8)[0] - 0.5) < 1e-9


# %% [markdown]
# **2.** The wavelength of a pair of features is the number of positions in one full turn. Return RoPE's longest
# wavelength for heads of `P` features. (Llama 3 raised `theta` from 10,000 to 500,000: now you see why.)
# %% exercise 2
def longest_wavelength(P, theta):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 2
with exercise(2):
    for P, theta in ((64, 10_000.0), (128, 500_000.0)):
        turns = longest_wavelength(P, theta) * theta ** (-(P - 2) / P) / (2 * math.pi)
        assert abs(turns - 1) < 1e-6


# %% [markdown]
# **3.** Position interpolation reads a text that is `factor` times too long by dividing all positions by `factor`.
# Write `rotate` with it, and compare with `scaling: {kind: linear}` of Archetype.
# %% exercise 3
def rotate_interpolated(x, i, factor):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 3
with exercise(3):
    scaled = decoder({"position": {"kind": "rotary", "scaling": {"kind": "linear", "factor": 4.0}}})
    scaled.load_state_dict(model.state_dict())
    vectors = torch.randn(1, 4, 9, 16)
    context = ForwardContext.of(torch.zeros(1, 9, dtype=torch.long))
    rotated = scaled.blocks[0].mixer.rotary(vectors, context.positions, context)
    torch.testing.assert_close(rotate_interpolated(vectors[0, 1, 8], 8, 4.0), rotated[0, 1, 8])
