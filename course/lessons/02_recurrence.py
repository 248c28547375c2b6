# %% [markdown]
# # 2. Recurrence and vanishing gradients
#
# **Question.** A recurrent network reads a text of any length. Why does it forget the beginning, and what do gates
# change?
#
# You compute a recurrent layer by hand, measure how strongly the first token still affects the last output, and
# watch four networks learn to remember one token.
# %% [markdown]
# ## By hand
#
# An Elman network keeps one vector and updates it with each token:
#
# $$h_t = \tanh(W x_t + U h_{t-1} + b)$$
#
# Archetype's layer has two biases, like PyTorch's.
# %%

import archetype
from archetype.extend import ForwardContext

D = 32


def layer_of(mixer, d_model=D):
    """The mixer of a decoder with one layer."""
    layer = {"wiring": {"kind": "plain"}, "mixer": mixer}
    sizes = {"vocab_size": 16, "context_length": 128, "d_model": d_model}
    return archetype.build({"kind": "decoder", **sizes, "layers": [layer]}).blocks[0].mixer


rnn = layer_of({"kind": "rnn"})
x = torch.randn(1, 10, D)
W, U, b = rnn.cell.weight_ih_l0, rnn.cell.weight_hh_l0, rnn.cell.bias_ih_l0 + rnn.cell.bias_hh_l0
h, outputs = torch.zeros(D), []
for t in range(10):
    h = torch.tanh(W @ x[0, t] + U @ h + b)
    outputs.append(h)
torch.testing.assert_close(torch.stack(outputs)[None], rnn(x, ForwardContext.of(x)))
print("ten steps by hand equal the layer's output")
# %% [markdown]
# ## Predict
#
# By the chain rule, the gradient of $h_T$ with respect to $h_t$ is a product of $T - t$ Jacobians
# $\operatorname{diag}(1 - h^2)\, U$. Let $U$ be a rotation times 0.9, and the inputs so small that $\tanh$ is
# almost the identity. By what factor has the gradient shrunk after 50 steps?
# %%
prediction = None
# %%


def gradient_by_distance(mixer, length=64, scale=0.01):
    """Gradient norm of the last output with respect to the input n steps earlier, for each n."""
    torch.manual_seed(1)
    x = (scale * torch.randn(32, length, D)).requires_grad_()
    last = mixer(x, ForwardContext.of(x))[:, -1]
    (last * torch.randn_like(last)).sum().backward()
    return x.grad.norm(dim=-1).mean(0).flip(0)


def rotation_times(factor):
    """An RNN whose recurrent matrix is a rotation times a factor."""
    mixer = layer_of({"kind": "rnn"})
    with torch.no_grad():
        rotation = torch.linalg.qr(torch.randn(D, D)).Q
        mixer.cell.weight_hh_l0.copy_(factor * rotation)
        for bias in (mixer.cell.bias_ih_l0, mixer.cell.bias_hh_l0):
            bias.zero_()
    return mixer


gradient = gradient_by_distance(rotation_times(0.9))
reveal(prediction, (gradient[50] / gradient[0]).item())
print(f"0.9^50 = {0.9**50:.6g}")
# %% [markdown]
# ## Gates
#
# An LSTM carries a second vector, the cell: $c_t = f_t \odot c_{t-1} + i_t \odot g_t$. From step to step the cell
# is only multiplied by the forget gate $f_t = \sigma(\cdot)$, which starts at 0.88 with a bias of 2. The paths
# through the other gates add about a tenth. A GRU has one vector, and a gate that decides how much of it is kept.
# Attention reads every position directly, so its gradient is not a product over steps.
# %%


def gated(kind, bias):
    """An LSTM or GRU with this bias of the gate that decides what is kept."""
    mixer = layer_of({"kind": kind})
    with torch.no_grad():
        for vector in (mixer.cell.bias_ih_l0, mixer.cell.bias_hh_l0):
            vector.zero_()
            vector[D : 2 * D] = bias / 2  # the second gate in torch's order, forget of LSTM and update of GRU
    return mixer


curves = {
    "RNN, 0.9": gradient,
    "RNN, 1.1": gradient_by_distance(rotation_times(1.1)),
    "RNN, 1.1, large inputs": gradient_by_distance(rotation_times(1.1), scale=1.0),
    "LSTM, forget bias 0": gradient_by_distance(gated("lstm", 0.0)),
    "LSTM, forget bias 2": gradient_by_distance(gated("lstm", 2.0)),
    "GRU, update bias 2": gradient_by_distance(gated("gru", 2.0)),
    "attention": gradient_by_distance(layer_of({"kind": "attention", "num_heads": 4})),
}
figure, axis = plt.subplots(figsize=(6, 3.4))
for name, values in curves.items():
    axis.semilogy(values / values[1], label=name)
axis.set(xlabel="steps back", ylabel="gradient, 1 step back = 1", ylim=(1e-8, 1e4))
axis.legend(fontsize=7)
figure.tight_layout()
# %% [markdown]
# ## Does it matter for learning?
#
# The first token is one of eight, and 30 tokens of noise follow. Then the network must predict the first token. A
# guess is right one time in eight. LSTM and GRU start with a bias of 4, that is, a gate of 0.98.
# %%
GAP = 30


def batch(size):
    first = torch.randint(8, (size, 1))
    return torch.cat((first, torch.randint(8, 16, (size, GAP))), dim=1), first[:, 0]


def accuracy_after(mixer, steps=200):
    torch.manual_seed(0)
    sizes = {"vocab_size": 16, "context_length": 64, "d_model": D}
    model = archetype.build(
        {"kind": "decoder", **sizes, "layers": [{"wiring": {"kind": "plain"}, "mixer": mixer}],
         "initialization": {"kind": "normal", "std": 0.2}}
    )  # fmt: skip
    if mixer["kind"] in ("lstm", "gru"):
        model.blocks[0].mixer.load_state_dict(gated(mixer["kind"], 4.0).state_dict())

    def loss():
        tokens, first = batch(32)
        return torch.nn.functional.cross_entropy(model(tokens, last_only=True).logits[:, 0], first)

    fit(loss, model.parameters(), steps, rate=1e-2)
    tokens, first = batch(500)
    with torch.no_grad():
        return (model(tokens, last_only=True).logits[:, 0].argmax(-1) == first).double().mean().item()


for mixer in ({"kind": "rnn"}, {"kind": "lstm"}, {"kind": "gru"}, {"kind": "attention", "num_heads": 4}):
    print(f"{mixer['kind']:9}  {accuracy_after(mixer):.1%} correct")
# %% [markdown]
# ## What you have seen
#
# * $\dfrac{\partial h_T}{\partial h_t} = \prod_{s=t+1}^{T} \operatorname{diag}(1 - h_s^2)\, U$: with factors below
#   1 it vanishes, above 1 it explodes, until $\tanh$ saturates.
# * The cell of an LSTM replaces the product of matrices by a product of gates, which can be near 1.
# * Attention has a path of one step between any two positions. The price is a cache that grows with the text
#   (lesson 6), whereas a recurrent state has the same size at every length:
# %%
for mixer in ({"kind": "lstm"}, {"kind": "attention", "num_heads": 4}):
    layer = {"wiring": {"kind": "plain"}, "mixer": mixer}
    sizes = {"vocab_size": 16, "context_length": 4096, "d_model": D}
    report = archetype.cost_report({"kind": "decoder", **sizes, "layers": [layer]}, length=4096)
    print(f"{mixer['kind']:9}  state of 4,096 tokens: {report.state['bytes']:,} bytes")


# %% [markdown]
# ## Exercises
#
# **1.** With one feature and no $\tanh$: $h_t = a\,h_{t-1} + w\,x_t$. What is $\partial h_T / \partial x_{T-n}$?
# %% exercise 1
def linear_gradient(a, w, n):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 1
with exercise(1):
    a, w = torch.tensor(0.8), torch.tensor(1.5)
    xs, h = torch.randn(12, requires_grad=True), torch.tensor(0.0)
    for x_t in xs:
        h = a * h + w * x_t
    h.backward()
    for n in range(12):
        assert abs(linear_gradient(0.8, 1.5, n) - xs.grad[11 - n].item()) < 1e-5


# %% [markdown]
# **2.** Half of the cell's value should remain after `half_life` $= n$ tokens. Return the bias of the forget gate
# that achieves this, if the gate depends only on its bias: $\sigma(b)^n = 1/2$.
# %% exercise 2
def forget_bias(half_life):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 2
with exercise(2):
    for half_life in (1, 10, 1000):
        assert abs(torch.sigmoid(torch.tensor(forget_bias(half_life)).double()) ** half_life - 0.5) < 1e-4


# %% [markdown]
# **3.** Exploding gradients are clipped: if the norm of *all* tensors together exceeds `max_norm`, all are
# multiplied by the same factor, so that the norm becomes `max_norm`. Return the clipped tensors.
# %% exercise 3
def clipped(gradients, max_norm):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 3
with exercise(3):
    gradients = [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])]
    small, same = clipped(gradients, 1.0), clipped(gradients, 10.0)
    torch.testing.assert_close(small[0], torch.tensor([0.6, 0.0]))
    torch.testing.assert_close(small[1], torch.tensor([[0.8]]))
    torch.testing.assert_close(same[1], torch.tensor([[4.0]]))
