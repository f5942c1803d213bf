"""Contenders that are not this project: PyTorch, with transformers and without."""
