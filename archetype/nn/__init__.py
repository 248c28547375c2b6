"""Building blocks shared by the modules of all parts: forward context, states, dropout, convolutions, chunks."""
