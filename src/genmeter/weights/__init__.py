"""Weights: what models.lock pins, fetched once, checked, converted to safetensors and kept under ``home()``."""
