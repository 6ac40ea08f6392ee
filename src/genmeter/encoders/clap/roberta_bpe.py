"""RoBERTa's byte-level BPE tokenizer, from a vocab.json and a merges.txt. No torch.

The rules are those of GPT-2 with RoBERTa's special tokens: no cleaning of the text and no space put before it; words
keep the space before them; bytes, so that any text has tokens. A special token that stands in the text is taken for
one, as transformers' tokenizer does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from genmeter.encoders.clip.bpe import BytePairs, merge
from genmeter.errors import GenmeterError
from genmeter.weights.load import load_bytes

START, PAD, END, UNKNOWN, MASK = "<s>", "<pad>", "</s>", "<unk>", "<mask>"

# Contractions, then runs of letters, of digits and of anything else with the space before them, then white space, of
# which the last character belongs to what follows.
_PIECES = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Padding comes in steps: what is masked cannot reach a feature, and unlike lengths need not all be as long as the
# longest.
_STEP = 16


class RobertaTokenizer(BytePairs):
    """Text to RoBERTa token ids; safe in threads.

    Args:
        vocabulary: Bytes of vocab.json, token to id.
        merges: Bytes of merges.txt, one pair a line in their order.
        context_length: Most tokens a text may have, start and end included.
        model: Name of the entry, for messages.
        step: See :class:`genmeter.encoders.clip.bpe.BytePairs`.

    Raises:
        GenmeterError: ``weights_mismatch`` when the files do not belong together or are no tokenizer.
    """

    def __init__(self, vocabulary: bytes, merges: bytes, context_length: int, model: str, step: int = _STEP) -> None:
        import regex

        try:
            ids, self._bytes, self._merges = _read(vocabulary, merges)
            start, pad, end = (ids[token] for token in (START, PAD, END))
            if (start, pad, end) != (0, 1, 2):  # what RoBERTa's positions and padding are built on
                raise ValueError("start, padding and end are not the tokens 0, 1 and 2")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise GenmeterError(
                "weights_mismatch",
                f"{model}: vocab.json and merges.txt are no tokenizer of a RoBERTa ({type(error).__name__}: {error})",
                "convert the weights again with `genmeter models fetch`",
            ) from None
        super().__init__(context_length, step, start, end, pad)
        self._special = {token: ids[token] for token in (START, PAD, END, UNKNOWN, MASK) if token in ids}
        # <mask> takes the white space before it along.
        words = "|".join(regex.escape(token) for token in self._special if token != MASK)
        self._split = regex.compile(rf"({words}|\s*{regex.escape(MASK)})" if MASK in ids else f"({words})").split
        self._find: Callable[[str], list[Any]] = regex.compile(_PIECES).findall

    def encode(self, text: str) -> list[int]:
        """Token ids of a whole text, without start and end; a lone surrogate becomes U+FFFD."""
        found: list[int] = []
        text = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        for piece in self._split(text):
            special = self._special.get(piece.strip()) if piece else None
            # Only <mask> may have lost white space here.
            if special is not None and (piece in self._special or piece.endswith(MASK)):
                found.append(special)
                continue
            for word in self._find(piece):
                found += self._known(word)
        return found

    def _word(self, word: str) -> list[int]:
        return merge([self._bytes[byte] for byte in word.encode("utf-8")], self._merges)


def read_files(path: Path, model: str, names: tuple[str, str]) -> tuple[bytes, bytes]:
    """The tokenizer's files stored in a weights file under ``names``; nothing else of it is read.

    Raises:
        GenmeterError: ``weights_mismatch`` when the weights do not hold them.
    """
    found = load_bytes(path, names)
    for name, data in zip(names, found, strict=True):
        if data is None:
            raise GenmeterError(
                "weights_mismatch",
                f"{model}: the weights hold no {name!r} as a list of bytes, so texts have no tokenizer",
                "convert them again with `genmeter models fetch`",
            )
    return found[0] or b"", found[1] or b""


def _read(vocabulary: bytes, merges: bytes) -> tuple[dict[str, int], list[int], dict[tuple[int, int], tuple[int, int]]]:
    """Token ids, the id of each byte, and the merges as pairs of ids -> (rank, id of what they become)."""
    ids: dict[str, int] = json.loads(vocabulary.decode("utf-8"))
    # Bytes are written as characters: printable ones of Latin-1 as themselves, the rest as those from 256 on.
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    rest = [byte for byte in range(256) if byte not in plain]
    letters = [chr(byte) if byte in plain else chr(256 + rest.index(byte)) for byte in range(256)]
    lines = merges.decode("utf-8").split("\n")
    pairs = [line.split() for line in lines if line.strip() and not line.startswith("#version")]
    ranks: dict[tuple[int, int], tuple[int, int]] = {}
    for left, right in pairs:
        pair = ids[left], ids[right]
        ranks[pair] = (ranks[pair][0] if pair in ranks else len(ranks), ids[left + right])
    return ids, [ids[letter] for letter in letters], ranks
