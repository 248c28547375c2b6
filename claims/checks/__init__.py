"""Parts of the claims that need no training: identities, arithmetic, simulations, models as they are initialized."""
