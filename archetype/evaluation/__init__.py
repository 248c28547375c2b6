"""How good a model is: what it writes while it trains, a report of its run, its scores on texts and on known tasks."""
