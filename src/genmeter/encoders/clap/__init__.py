"""CLAP features of audio and texts: two towers, their tokenizer and their preprocessing as one encoder."""

from genmeter.encoders.clap.encoder import ClapEncoder

__all__ = ["ClapEncoder"]
