# %% exercise 1
def gpt_parameters(L, D, V, T):
    return L * (12 * D**2 + 13 * D) + (V + T) * D + 2 * D


# %% exercise 2
def chinchilla_parameters(budget):
    return (budget / (6 * 20)) ** 0.5


# %% exercise 3
def tokens_per_second(parameters, bandwidth):
    return bandwidth / (2 * parameters)
