# %% [markdown]
# # 8. Gates and experts
#
# **Question.** The feed-forward layer has most of a model's parameters. What does a gate add to it, and how can it
# have more parameters without more work?
#
# You compute SwiGLU and a mixture of experts by hand, look at neurons that have died, and keep experts in balance.
# %% [markdown]
# ## A gate by hand
#
# The first Transformer has two matrices, $W_2 \max(0, W_1 x)$. A gated layer has three: one product decides how
# much of another passes.
#
# $$\operatorname{SwiGLU}(x) = W_{down} \left( \operatorname{silu}(W_{gate}\, x) \odot W_{up}\, x \right),
# \qquad \operatorname{silu}(z) = z\,\sigma(z)$$
# %%
import archetype
from archetype.extend import ForwardContext

D = 48


def feedforward_of(part, D=D, initialization="xavier"):
    block = {
        "wiring": {"kind": "pre_norm", "norm": "rms"}, "mixer": {"kind": "attention", "num_heads": 4},
        "feedforward": part,
    }  # fmt: skip
    sizes = {"vocab_size": 64, "context_length": 128, "d_model": D, "initialization": {"kind": initialization}}
    return {"kind": "decoder", **sizes, "layers": [block], "final_norm": "rms"}


x = torch.randn(1, 20, D)
context = ForwardContext.of(x)
gated = archetype.build(feedforward_of({"kind": "gated", "d_ff": 128, "activation": "silu"})).blocks[0].feedforward
with torch.no_grad():
    gate, up = x @ gated.gate.weight.T, x @ gated.up.weight.T
    by_hand = (gate * gate.sigmoid() * up) @ gated.down.weight.T
    torch.testing.assert_close(by_hand, gated(x, context))
print("SwiGLU by hand equals the layer's output")
# %% [markdown]
# ## Predict
#
# With $F$ hidden features the plain layer has $2 D F$ parameters, usually with $F = 4 D$. The gated layer has
# three matrices. What multiple of $D$ must its $F$ be to have the same number of parameters?
# %%
prediction = None
# %%
reveal(prediction, 8 / 3)
for part in (
    {"kind": "mlp", "d_ff": 4 * 768, "activation": "relu"},
    {"kind": "gated", "d_ff": 768 * 8 // 3, "activation": "silu"},
):
    rows = archetype.cost_report(feedforward_of(part, D=768)).records()
    print(f"{part['kind']:5}  {sum(row['parameters'] for row in rows if 'feedforward.' in row['module']):,} parameters")
# %% [markdown]
# ## Dead neurons
#
# The derivative of ReLU is zero for negative inputs. A hidden feature that is negative for *every* token gets no
# gradient and cannot come back. Shift the hidden features down with a bias and count those whose gradient is
# exactly zero.
# %%


def dead_share(activation, shift):
    part = {"kind": "mlp", "d_ff": 512, "activation": activation, "bias": True}
    layer = archetype.build(feedforward_of(part)).blocks[0].feedforward
    with torch.no_grad():
        layer.up.bias.fill_(-shift)
    layer(x, context).square().sum().backward()
    return (layer.up.weight.grad.abs().amax(-1) == 0).double().mean().item()


shifts = torch.linspace(0, 4, 9).tolist()
figure, axis = plt.subplots(figsize=(5, 2.6))
for activation in ("relu", "gelu", "silu"):
    axis.plot(shifts, [dead_share(activation, shift) for shift in shifts], "o-", label=activation)
axis.set(xlabel="bias moved down by", ylabel="share without gradient")
axis.legend()
figure.tight_layout()
# %% [markdown]
# ## Experts by hand
#
# A mixture of experts has $E$ small feed-forward layers and a router, a matrix that gives each token a logit for
# each expert. Only the $k$ experts with the highest logits are computed, and their outputs are mixed with the
# softmax of these logits.
# %%
E, k = 8, 2
part = {
    "kind": "experts", "num_experts": E, "experts_per_token": k,
    "expert": {"kind": "gated", "d_ff": 32, "activation": "silu"},
}  # fmt: skip
mixture = archetype.build(feedforward_of(part)).blocks[0].feedforward
experts = mixture.experts
with torch.no_grad():
    rows = []
    for token in x[0]:
        logits = mixture.router.weight @ token
        best = logits.topk(k)
        result = torch.zeros(D)
        for weight, expert in zip(best.values.softmax(-1), best.indices, strict=True):
            gate = experts.gate[expert] @ token
            result += weight * (experts.down[expert] @ (gate * gate.sigmoid() * (experts.up[expert] @ token)))
        rows.append(result)
    torch.testing.assert_close(torch.stack(rows)[None], mixture(x, context))
rows = archetype.cost_report(feedforward_of(part)).records()
total, active = (sum(row[name] for row in rows if "feedforward." in row["module"]) for name in ("parameters", "active"))
print(f"{total:,} parameters, of which {active:,} are active for one token")
# %% [markdown]
# ## Balance
#
# Nothing forces a router to use all of its experts. An expert that is chosen more often learns more and is then
# chosen even more often. So training adds a loss that is 1 when all experts are chosen equally often and grows
# towards $E$ when one expert gets every token:
#
# $$\text{balance} = E \sum_e f_e\, p_e$$
#
# where $f_e$ is the share of choices that went to expert $e$, and $p_e$ is its mean probability. We train the same
# model with and without this loss. The texts come from three made-up languages. In each of them a token
# determines the next one.
# %%
next_tokens = torch.stack([torch.randperm(64) for _ in range(3)])


def batch_of(count, length=24):
    language = torch.randint(3, (count,))
    tokens = [torch.randint(64, (count,))]
    for _ in range(length):
        tokens.append(next_tokens[language, tokens[-1]])
    return torch.stack(tokens, dim=1)


def train(balance_loss):
    torch.manual_seed(0)
    changed = feedforward_of(part | {"balance_loss": balance_loss}, initialization="gpt2")
    model = archetype.build(changed)
    with torch.no_grad():
        model.blocks[0].feedforward.router.weight[0] += 0.3  # start with a biased router
        model.embedding.token.weight += 0.2

    def loss():
        batch = batch_of(16)
        output = model(batch[:, :-1])
        next_token = torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), batch[:, 1:].flatten())
        return next_token if output.aux_loss is None else next_token + output.aux_loss

    losses = fit(loss, model.parameters(), 200, rate=1e-2)
    trace = archetype.LanguageModel(model.spec, model.eval()).trace(batch_of(32)[:, :-1]).run()
    chosen = trace["blocks.0.feedforward.chosen"].flatten()
    return losses[-1], torch.bincount(chosen, minlength=E) / len(chosen)


figure, axis = plt.subplots(figsize=(5, 2.6))
for bar, balance_loss in enumerate((0.0, 0.05)):
    loss, shares = train(balance_loss)
    axis.bar(
        [expert + 0.4 * bar for expert in range(E)], shares.tolist(), width=0.4, label=f"balance loss {balance_loss}"
    )
    print(f"balance loss {balance_loss}: busiest expert {shares.max():.0%}, idlest {shares.min():.0%}")
axis.axhline(1 / E, color="gray", linestyle=":")
axis.set(xlabel="expert", ylabel="share of routed tokens")
axis.legend()
figure.tight_layout()
# %% [markdown]
# ## What you have seen
#
# * Gated layers have three matrices; $F = \frac83 D$ makes them as large as the plain layer with $4D$.
# * ReLU features can die; smooth activations keep a small gradient almost everywhere.
# * A mixture has $E$ experts' parameters and $k$ experts' work: Mixtral 8x7B has 46.7 B parameters, of which 12.9
#   B are used for one token. A balance loss spreads the choices.
# %%
report = archetype.cost_report("mixtral-8x7b", length=1)
print({name: f"{report.parameters[name] / 1e9:.1f} B" for name in ("total", "active")})


# %% [markdown]
# ## Exercises
#
# **1.** Write the balance loss of `affinities` (N tokens, E experts; each row a softmax) and `chosen` (N, k).
# %% exercise 1
def balance(affinities, chosen):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 1
with exercise(1):
    fair = torch.full((8, 4), 0.25)
    assert abs(balance(fair, torch.arange(16).view(8, 2) % 4) - 1) < 1e-6
    one = torch.tensor([[1.0, 0, 0, 0]]).expand(8, 4)
    assert abs(balance(one, torch.zeros(8, 1, dtype=torch.long)) - 4) < 1e-6


# %% [markdown]
# **2.** Return the share of a model's parameters that is used for one token. The model has `shared` parameters that
# every token uses, and `E` experts with `expert` parameters each, of which the router selects `k` per token.
# %% exercise 2
def active_share(shared, expert, E, k):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 2
with exercise(2):
    facts = archetype.cost_report("mixtral-8x7b", length=1).parameters
    one_expert = 32 * 3 * 4096 * 14336
    others = facts["total"] - 8 * one_expert
    assert abs(active_share(others, one_expert, 8, 2) - facts["active"] / facts["total"]) < 1e-9


# %% [markdown]
# **3.** GLU (Dauphin 2016) uses $\sigma$ where SwiGLU uses silu. Compute it from the three matrices, each the
# `weight` of a linear layer.
# %% exercise 3
def glu(x, gate, up, down):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 3
with exercise(3):
    layer = (
        archetype.build(feedforward_of({"kind": "gated", "d_ff": 64, "activation": "sigmoid"})).blocks[0].feedforward
    )
    with torch.no_grad():
        by_answer = glu(x, layer.gate.weight, layer.up.weight, layer.down.weight)
        torch.testing.assert_close(by_answer, layer(x, context))
