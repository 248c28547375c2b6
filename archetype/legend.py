"""The letters of shapes: one meaning each, in signatures and in comments at line ends. A test refuses others.

A size that has no letter is spelled out (`height`, `channels`), and a product of sizes is written together (`HP`).
"""

LEGEND = {
    "B": "batch",
    "T": "query positions",
    "S": "key positions",
    "D": "d_model",
    "H": "query heads",
    "K": "key/value heads",
    "G": "query heads for each key/value head, H / K",
    "P": "head_dim",
    "Q": "v_head_dim, where values are not as wide as keys",
    "C": "rank of the latent of keys and values",
    "R": "rotary dims",
    "R2": "pairs of rotary dims, R / 2",
    "F": "d_ff",
    "E": "experts",
    "k": "experts of a token",
    "N": "tokens of all rows together",
    "V": "vocabulary",
    "Y": "classes",
    "L": "layers",
    "Z": "state size",
    "I": "inner channels of Mamba",
    "W": "positions that a window or a convolution keeps",
    "J": "bytes of a patch",
    "M": "patches",
    "U": "width of MegaByte's global model",
    "b": "batch, or 1 where all rows are alike; b2 and b3 where several of them are broadcast",
    "h": "query heads, or 1 where all heads are alike",
    "t": "query positions, or 1 where only the last is computed",
    "g": "tiles of a pattern",
    "a": "queries of a tile",
    "c": "keys of a tile",
    "n": "tokens that an expert gets, or that an n-gram model reads",
}
