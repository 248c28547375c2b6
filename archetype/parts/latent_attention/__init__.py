"""Multi-head latent attention: keys and values from one low-rank vector per position (DeepSeek-AI 2024)."""
