"""Lightning index of DeepSeek's sparse attention: a small attention that selects keys (DeepSeek-AI 2025)."""
