"""Exact match of an answer with reference answers (the normalization squad is of Rajpurkar et al., EMNLP 2016)."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from genmeter.contract import Params, Score, Unscored

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


class ExactMatch:
    """1 where the normalized answer equals a reference, or names the right option; else 0."""

    def score(self, items: Sequence[Mapping[str, Any]], params: Params) -> list[Score | Unscored]:
        """Score answers by themselves.

        Args:
            items: Each with ``answer``: ``text``, and either ``references`` (texts, any of which may be met) or
                ``choice`` with ``predicted`` (the id of an option, or None) and ``correct`` (ids).
            params: ``normalize``, which does not touch a choice.

        Returns:
            One score an item, 0.0 or 1.0, with ``detail.matched`` (the place of the reference that was met, or None)
            or ``detail.resolved`` and ``detail.correct`` of a choice.
        """
        how = str(params["normalize"])
        return [_choice(item["answer"]) or _free(item["answer"], how) for item in items]


def _choice(answer: Mapping[str, Any]) -> Score | None:
    choice = answer.get("choice")
    if choice is None:
        return None
    named, right = choice["predicted"], list(choice["correct"])
    return Score(float(named in right), detail={"resolved": named, "correct": right})


def _free(answer: Mapping[str, Any], how: str) -> Score:
    said = normalized(answer["text"], how)
    met = [index for index, text in enumerate(answer["references"]) if normalized(text, how) == said]
    return Score(float(bool(met)), detail={"matched": met[0] if met else None})


def normalized(text: str, how: str) -> str:
    """The text that is compared: ``none`` leaves it, ``spaces`` and ``squad`` are described in the card."""
    if how == "none":
        return text
    text = unicodedata.normalize("NFC", text)
    if how == "squad":
        # Punctuation goes first, as in the published script: "a." holds an article only without its full stop.
        text = _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION))
    return " ".join(text.split())
