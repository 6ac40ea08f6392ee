"""How texts are cleaned before they are tokenized, as the networks saw them in training."""

from __future__ import annotations

import html
import string

CLEANINGS = ("lower", "whitespace", "canonicalize")

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def clean(text: str, how: str) -> str:
    """Repair mojibake, resolve HTML entities (twice), and fold white space.

    Args:
        text: Any string; lone surrogates become U+FFFD.
        how: ``lower`` also lowers case; ``canonicalize`` also drops ASCII punctuation; ``whitespace`` does neither.
    """
    # Nothing below changes plain ASCII without entities, and captions mostly are.
    if not (text.isascii() and text.isprintable() and "&" not in text):
        import ftfy

        text = html.unescape(html.unescape(ftfy.fix_text(text)))
    text = text.strip()
    if how == "canonicalize":
        text = text.replace("_", " ").translate(_NO_PUNCTUATION)
    text = " ".join(text.split())
    return text if how == "whitespace" else text.lower()
