"""Settings of training and generation, each with its help; the command line makes options of them without torch."""
