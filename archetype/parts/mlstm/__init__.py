"""mLSTM: the recurrence of xLSTM with a matrix as memory."""
