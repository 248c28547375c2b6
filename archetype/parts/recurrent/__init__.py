"""Recurrent networks: RNN, LSTM and GRU (Elman 1990; Hochreiter 1997; Cho 2014)."""
