"""Mixtures of experts and their routers (Shazeer 2017; Fedus 2021; DeepSeek-AI 2024)."""
