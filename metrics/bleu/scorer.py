"""Sentence BLEU (Papineni et al., ACL 2002) as sacrebleu computes it (Post, WMT 2018, arXiv 1804.08771)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from genmeter.contract import Params, Score

_CHINESE = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]")


class Bleu:
    """Sentence BLEU with effective order and exponential smoothing, divided by 100."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, bool], Any] = {}

    def score(self, items: Sequence[Mapping[str, Any]], params: Params) -> list[Score]:
        """Score answers by themselves.

        Args:
            items: Each with ``answer``: ``text``, and ``references``, at least one text.
            params: ``tokenize`` and ``lowercase``, as sacrebleu's.

        Returns:
            One score an item in [0, 1], with sacrebleu's ``detail.signature`` and the counts that corpus BLEU is made
            from: ``matches`` and ``ngrams`` for n = 1 to 4, ``length`` and ``reference_length`` in tokens.
        """
        return [self._score(item["answer"], params) for item in items]

    def _score(self, answer: Mapping[str, Any], params: Params) -> Score:
        references = list(answer["references"])
        tokenize = str(params["tokenize"])
        if tokenize == "auto":
            tokenize = "zh" if any(_CHINESE.search(text) for text in references) else "13a"
        bleu = self._bleu(tokenize, bool(params["lowercase"]))
        found = bleu.sentence_score(answer["text"], references)
        # Equal sentences come to 100.00000000000004 there.
        value = min(max(found.score / 100.0, 0.0), 1.0)
        return Score(
            value,
            detail={
                "tokenize": tokenize,
                "matches": [int(n) for n in found.counts],
                "ngrams": [int(n) for n in found.totals],
                "length": int(found.sys_len),
                "reference_length": int(found.ref_len),
                "signature": str(bleu.get_signature()),
            },
        )

    def _bleu(self, tokenize: str, lowercase: bool) -> Any:
        """sacrebleu's metric, whose import takes a moment and is therefore left until something is scored."""
        if (tokenize, lowercase) not in self._made:
            from sacrebleu.metrics.bleu import BLEU

            made = BLEU(effective_order=True, tokenize=tokenize, lowercase=lowercase)
            self._made[tokenize, lowercase] = made
        return self._made[tokenize, lowercase]
