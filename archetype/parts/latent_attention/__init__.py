"""Multi-head latent attention: keys and values from one narrow vector per position (DeepSeek-AI 2024)."""
