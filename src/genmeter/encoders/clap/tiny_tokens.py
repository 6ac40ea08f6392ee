"""The words of the tiny CLAP; how a text becomes ids stands in :mod:`genmeter.encoders.clip.tiny_tokens`. No torch."""

from __future__ import annotations

from genmeter.encoders.clip.tiny_tokens import CONTEXT_LENGTH, TinyTokenizer

__all__ = ["CONTEXT_LENGTH", "SIZE", "VOCABULARY", "tokenizer"]

# The order is part of the trained weights: only ever append, and train anew.
_WORDS = """
    , - . a an the of in at with by and that is this we hear sound recording
    then first before after followed
    tone note chord sweep sweeps glide glides noise band narrow
    sine square sawtooth saw triangle wave waves pure
    white pink brown burst short
    click clicks clicking wooden drum drums shaker shakers beats hits rhythm
    major minor rising falling ascending descending upward downward
    low medium high middle deep shrill pitched
    slow fast long quick rapid unhurried
    steady constant even plucked struck tremolo
    fade fades fading out get gets growing louder quieter decay decays die dies away once tremble trembles pulse pulses
"""
_CHARACTERS = """
    一段个的着是有在和与声音录里这听到先然后接之前。、
    单调弦三大小扫滑频噪带窄阵短促
    正方锯齿角波白粉红棕色
    咔嗒木头敲击鼓点沙锤节拍奏
    上下升降行低中高沉尖锐等
    缓慢快速反复急
    平稳持续渐强弱淡入出越来响轻弹拨就消失颤动忽
"""
VOCABULARY = (*_WORDS.split(), *"".join(_CHARACTERS.split()))
SIZE = TinyTokenizer(VOCABULARY).size
"""Number of token ids."""


def tokenizer() -> TinyTokenizer:
    """English by words, Chinese by characters; needs no files."""
    return TinyTokenizer(VOCABULARY)
