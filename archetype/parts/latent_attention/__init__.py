"""Multi-head latent attention: keys and values from one narrow vector for each position (DeepSeek-AI 2024)."""
