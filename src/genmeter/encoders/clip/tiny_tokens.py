"""The tokenizer of the tiny CLIP: whole words of Latin script, single characters of Chinese. Imports numpy alone.

The words of :mod:`genmeter.synth` and their usual synonyms have a token each. Any other piece falls into one of
:data:`BUCKETS` shared tokens, chosen by a checksum, so that every text has ids and unlike texts mostly unlike ones.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Sequence

import numpy as np

from genmeter.encoders.clip.backend import Tokens

CONTEXT_LENGTH = 64
PAD, START, END = 0, 1, 2
BUCKETS = 125

# The order is part of the trained weights: only ever append, and train anew.
_WORDS = """
    a an the one two three four 1 2 3 4 single some several of and with to in on at by is are there , . ; :
    circle circles disc discs disk disks square squares triangle triangles diamond diamonds rhombus rhombuses star stars
    ring rings hoop hoops cross crosses plus sign signs hexagon hexagons shape shapes figure figures
    red orange yellow green blue purple violet pink brown black white grey gray cyan turquoise
    plain solid striped dotted spotted checkered chequered checked polka dot dots stripes checks pattern
    small little tiny large big huge left right top bottom centre center middle side above below under over
    background backdrop against next upper lower part
    photo picture image drawing depicts depicting shows showing
"""
_CHARACTERS = """
    一两三四几些单个颗的有是为和与在上面中画图片张幅里这。、
    圆正方角菱五六边形星环十字块圈红橙橘黄绿蓝紫粉棕褐黑白灰青色纯条纹波点斑格子棋盘带
    小大巨左右侧下顶底间央心部背景
"""
VOCABULARY = (*_WORDS.split(), *"".join(_CHARACTERS.split()))
SIZE = END + 1 + len(VOCABULARY) + BUCKETS
"""Number of token ids."""

# Runs of letters outside the scripts that are written without spaces; else one character.
_PIECES = re.compile(r"(?:(?![\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])[^\W\d_])+|\S")


def pieces(text: str) -> list[str]:
    """The words and characters a text is made of, after NFKC and lower case (which makes "，" a ",")."""
    found: list[str] = _PIECES.findall(unicodedata.normalize("NFKC", text).lower())
    return found


class TinyTokenizer:
    """From text to (:data:`CONTEXT_LENGTH`,) int64 ids between a start and an end token, padded with zeros.

    Args:
        vocabulary: The pieces with ids of their own, in the order of a network's training.
    """

    def __init__(self, vocabulary: Sequence[str] = VOCABULARY) -> None:
        self._ids = {word: index for index, word in enumerate(vocabulary, start=END + 1)}
        self.size = END + 1 + len(vocabulary) + BUCKETS

    def __call__(self, text: str) -> Tokens:
        """Tokenize any string; never raises."""
        found = pieces(text)
        ids = np.full(CONTEXT_LENGTH, PAD, dtype=np.int64)
        kept = found[: CONTEXT_LENGTH - 2]
        ids[0] = START
        ids[1 : 1 + len(kept)] = [self.piece_id(piece) for piece in kept]
        ids[1 + len(kept)] = END
        return Tokens(ids, len(found) + 2, len(kept) < len(found))

    def piece_id(self, piece: str) -> int:
        """The id of one piece: its own, or that of a bucket."""
        known = self._ids.get(piece)
        if known is not None:
            return known
        # Lone surrogates cannot be encoded otherwise.
        return self.size - BUCKETS + zlib.crc32(piece.encode("utf-8", "surrogatepass")) % BUCKETS


piece_id = TinyTokenizer().piece_id
"""The id of one piece in the tiny CLIP's own vocabulary."""
