"""The lightning index of DeepSeek's sparse attention: a small attention that chooses keys (DeepSeek-AI 2025)."""
