"""Tokenizers that come as a ``tokenizer.json`` (SigLIP 2, XLM-R), read from the entry's own weights. No torch.

Such a file is as much a part of a network as its weights: another one gives other numbers without a word. So it is
stored among the canonical tensors, as bytes, under the name :data:`TENSOR`, is covered by their digest, and is never
looked up on a hub.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from genmeter.encoders.clip.backend import Tokens
from genmeter.encoders.clip.cleaning import clean
from genmeter.errors import GenmeterError
from genmeter.weights.load import load_bytes

TENSOR = "tokenizer.json"
"""Name of the tensor, (n,) uint8, that holds the bytes of the tokenizer's file."""


class SubwordTokenizer:
    """Text to token ids by a ``tokenizer.json``; safe in threads.

    Args:
        data: The file's bytes.
        context_length: Most tokens a text may have; ids are padded to it.
        pad: Id of the padding token.
        cleaning: ``whitespace``, ``canonicalize`` or ``lower``.
        model: Name of the entry, for messages.
        end: Id of the end token, where the file may not add it by itself; None leaves that to the file.

    Raises:
        GenmeterError: ``weights_mismatch`` when the bytes are no tokenizer, ``extra_missing`` without the library.
    """

    def __init__(
        self, data: bytes, context_length: int, pad: int, cleaning: str, model: str, end: int | None = None
    ) -> None:
        try:
            import tokenizers
        except ImportError:
            raise GenmeterError(
                "extra_missing",
                f"{model} needs the package tokenizers for its vocabulary",
                "pip install tokenizers",
            ) from None
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_str(data.decode("utf-8"))
        except Exception as error:  # the library raises bare Exception
            raise GenmeterError(
                "weights_mismatch", f"{model}: {TENSOR} is no tokenizer ({type(error).__name__})"
            ) from None
        # Cut and padded here: the count of all tokens is wanted, and the file's own settings must not matter.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.context_length, self.pad, self._clean, self._end = context_length, pad, cleaning, end

    def __call__(self, text: str) -> Tokens:
        """Token ids of one text, cut to the context length with the end token kept."""
        encoding = self._tokenizer.encode(clean(text, self._clean))
        ids, special = encoding.ids, encoding.special_tokens_mask
        if self._end is not None and ids[-1:] != [self._end]:
            ids, special = [*ids, self._end], [*special, 1]
        count, most = len(ids), self.context_length
        if count > most:
            tail = next((n for n, flag in enumerate(reversed(special)) if not flag), count)
            ids = ids[: most - tail] + ids[count - tail :]
        row = np.full(most, self.pad, np.int64)
        row[: len(ids)] = ids
        return Tokens(row, count, count > most)


def read_file(path: Path, model: str) -> bytes:
    """The tokenizer file stored in a weights file; nothing else of it is read.

    Raises:
        GenmeterError: ``weights_mismatch`` when the weights hold none.
    """
    [data] = load_bytes(path, (TENSOR,))
    if data is None:
        raise GenmeterError(
            "weights_mismatch",
            f"{model}: the weights hold no {TENSOR!r} as a list of bytes, and its tokenizer is no built-in one",
            "convert them again with `genmeter models fetch`",
        )
    return data
