"""Routers of mixtures of experts (Shazeer 2017; DeepSeek-AI 2024b)."""
