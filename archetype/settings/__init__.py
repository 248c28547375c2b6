"""Settings of training and generation with their help texts; command-line options are made from them without torch."""
