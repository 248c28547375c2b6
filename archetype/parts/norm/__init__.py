"""Norms of vectors (Ioffe 2015; Ba 2016; Zhang 2019)."""
