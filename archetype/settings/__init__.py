"""Settings of training and generation with their help texts, from which command-line options are made without torch."""
