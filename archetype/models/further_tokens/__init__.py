"""Multi-token prediction: modules that predict the tokens after the next (DeepSeek-AI 2024b, section 2.2)."""
