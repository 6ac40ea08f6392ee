"""The byte-pair tokenizer of the CLIP networks, reading the vocabulary that the open_clip package ships. No torch.

open_clip's own class does the same, but importing it imports torch, its cache of words grows with every new one (a
run over a million Chinese captions, which have no spaces, keeps them all), and its time is quadratic in the length of
a word.
"""

from __future__ import annotations

import functools
import gzip
import heapq
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from genmeter.encoders.clip.backend import Tokens
from genmeter.encoders.clip.cleaning import clean

_VOCABULARY = 49408
_END_OF_WORD = "</w>"
_SPECIAL = ("<start_of_text>", "<end_of_text>")
# Contractions, runs of letters, single digits, runs of anything else that is no space.
_PIECES = r"'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"
_CACHED_WORDS = 1 << 16
_CACHED_LENGTH = 48


class BytePairs(ABC):
    """What byte-pair tokenizers share: a bounded cache of words, the start and end tokens, cutting and padding.

    Args:
        context_length: Most tokens a text may have, start and end included.
        step: Ids come padded to the next multiple of it, and at most to the context length; 0 pads to the context
            length always.
        start: Id of the start token.
        end: Id of the end token.
        pad: Id that fills the rest.
    """

    def __init__(self, context_length: int, step: int, start: int, end: int, pad: int) -> None:
        self.context_length, self.step = context_length, step
        self.start, self.end, self.pad = start, end, pad
        self._cache: dict[str, list[int]] = {}

    def __call__(self, text: str) -> Tokens:
        """Token ids of one text, cut to the context length with the end token kept."""
        ids = [self.start, *self.encode(text), self.end]
        count, most = len(ids), self.context_length
        if count > most:
            ids[most - 1 :] = [self.end]
        length = most if not self.step else min(most, -(-len(ids) // self.step) * self.step)
        row = np.full(length, self.pad, np.int64)
        row[: len(ids)] = ids
        return Tokens(row, count, count > most)

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Token ids of a whole text, without start and end."""

    @abstractmethod
    def _word(self, word: str) -> list[int]:
        """Token ids of one word."""

    def _known(self, word: str) -> list[int]:
        """The same, from the cache where it stands there."""
        ids = self._cache.get(word)
        if ids is None:
            ids = self._word(word)
            if len(word) <= _CACHED_LENGTH:
                if len(self._cache) >= _CACHED_WORDS:
                    self._cache.clear()
                self._cache[word] = ids
        return ids


class BpeTokenizer(BytePairs):
    """Text to CLIP token ids, padded with 0; safe in threads.

    Args:
        path: The gzipped list of merges.
        context_length: Most tokens a text may have, start and end included.
        cleaning: ``lower`` (CLIP's), ``whitespace`` or ``canonicalize``.
        step: See :class:`BytePairs`.
    """

    def __init__(self, path: Path, context_length: int, cleaning: str = "lower", step: int = 0) -> None:
        import regex

        super().__init__(context_length, step, _VOCABULARY - 2, _VOCABULARY - 1, 0)
        self._clean = cleaning
        self._bytes, self._merges = _read(path)
        pattern = "|".join(_SPECIAL) + "|" + _PIECES
        self._find: Callable[[str], list[Any]] = regex.compile(pattern, regex.IGNORECASE).findall

    def encode(self, text: str) -> list[int]:
        """Token ids of a whole text, without start and end."""
        found: list[int] = []
        for word in self._find(clean(text, self._clean)):
            found += self._known(word)
        return found

    def _word(self, word: str) -> list[int]:
        if word in _SPECIAL:
            return [self.start if word == _SPECIAL[0] else self.end]
        symbols = [self._bytes[byte] for byte in word.encode("utf-8")]
        symbols[-1] += 256
        return merge(symbols, self._merges)


def merge(symbols: list[int], merges: dict[tuple[int, int], tuple[int, int]]) -> list[int]:
    """Join neighbours, lowest rank first and left to right, until no pair has a rank; n log n in the length.

    Args:
        symbols: Ids of the single symbols; used up.
        merges: From a pair of ids to (rank, id of what they become).
    """
    count = len(symbols)
    after, before = list(range(1, count + 1)), list(range(-1, count - 1))
    heap = []
    for at, pair in enumerate(itertools.pairwise(symbols)):
        if pair in merges:
            heap.append((merges[pair][0], at, *pair))
    heapq.heapify(heap)
    gone = -1
    while heap:
        rank = heap[0][0]
        # All pairs of one rank are joined before what that makes is looked at.
        due = []
        while heap and heap[0][0] == rank:
            due.append(heapq.heappop(heap))
        fresh = []
        for _, at, left, right in due:
            other = after[at]
            if symbols[at] != left or other >= count or symbols[other] != right:
                continue
            symbols[at], symbols[other] = merges[left, right][1], gone
            after[at] = after[other]
            if after[at] < count:
                before[after[at]] = at
            fresh.append(at)
        for at in fresh:
            if symbols[at] == gone:
                continue
            for left in (before[at], at):
                right = after[left] if left >= 0 else count
                joined = merges.get((symbols[left], symbols[right])) if right < count else None
                if joined is not None:
                    heapq.heappush(heap, (joined[0], left, symbols[left], symbols[right]))
    return [symbol for symbol in symbols if symbol != gone]


@functools.lru_cache(maxsize=4)
def _read(path: Path) -> tuple[list[int], dict[tuple[int, int], tuple[int, int]]]:
    """The id of each byte, and the merges. Ids: bytes, bytes that end a word, merges in their order, start, end."""
    # The file writes bytes as characters: printable ones of Latin-1 as themselves, the rest as those from 256 on.
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in set(plain)]
    letters = [chr(byte) for byte in plain] + [chr(256 + n) for n in range(len(rest))]
    of_byte = [0] * 256
    for index, byte in enumerate(plain + rest):
        of_byte[byte] = index
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as stream:
        lines = stream.read().split("\n")[1 : _VOCABULARY - 512 - 2 + 1]
    pairs = [tuple(line.split()) for line in lines]
    names = letters + [letter + _END_OF_WORD for letter in letters] + ["".join(pair) for pair in pairs]
    # Where two merges make the same string, it has the id of the later one.
    ids = {name: index for index, name in enumerate(names)}
    merges = {}
    for rank, (left, right) in enumerate(pairs):
        merges[ids[left], ids[right]] = (rank, ids[left + right])
    return of_byte, merges
