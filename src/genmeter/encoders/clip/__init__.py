"""CLIP features of images and texts: two towers, their tokenizer and their preprocessing as one encoder."""

from genmeter.encoders.clip.encoder import ClipEncoder

__all__ = ["ClipEncoder"]
