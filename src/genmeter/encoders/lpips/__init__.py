"""LPIPS distance of image pairs: backbone, heads and preprocessing as one pair encoder."""

from genmeter.encoders.lpips.encoder import LpipsEncoder

__all__ = ["LpipsEncoder"]
