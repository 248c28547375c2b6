"""Multi-token prediction (DeepSeek-AI 2024b, section 2.2)."""
