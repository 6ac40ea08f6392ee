"""Is a text in a script its network was trained on? Standard library only.

The rule looks at scripts, not at languages: French on an English network passes, Chinese does not. A text is outside
when

- more than a fifth of its letters belong to scripts that none of the network's languages is written in, where a
  character that stands for a syllable or a word (Han, kana, Hangul) counts as three letters: "a photo of 狗" is
  outside, "Schrödinger's ψ" is not; or
- it has no letters at all but emoji, which name things in no language.

Digits, punctuation and spaces say nothing either way, nor do emoji beside letters.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterable, Mapping

OUTSIDE_SHARE = 0.2
"""The share of letters in foreign scripts above which a text is outside."""

_WEIGHTS = {"HAN": 3, "HIRAGANA": 3, "KATAKANA": 3, "HANGUL": 3, "YI": 3, "BOPOMOFO": 2}

# What the languages are written in; any language that is not here is taken for one in Latin letters.
_SCRIPTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("zh", "yue", "wuu", "lzh"), ("HAN", "BOPOMOFO")),
    "ja": ("HAN", "HIRAGANA", "KATAKANA"),
    "ko": ("HANGUL", "HAN"),
    **dict.fromkeys(("ru", "uk", "be", "bg", "mk", "kk", "ky", "mn", "tg", "tt", "ba", "cv"), ("CYRILLIC",)),
    "sr": ("CYRILLIC", "LATIN"),
    **dict.fromkeys(("ar", "fa", "ur", "ps", "sd", "ug", "ckb", "arz"), ("ARABIC",)),
    **dict.fromkeys(("he", "iw", "yi"), ("HEBREW",)),
    **dict.fromkeys(("hi", "mr", "ne", "sa", "mai", "bho"), ("DEVANAGARI",)),
    **dict.fromkeys(("bn", "as"), ("BENGALI",)),
    "pa": ("GURMUKHI",),
    "gu": ("GUJARATI",),
    "or": ("ORIYA",),
    "ta": ("TAMIL",),
    "te": ("TELUGU",),
    "kn": ("KANNADA",),
    "ml": ("MALAYALAM",),
    "si": ("SINHALA",),
    "th": ("THAI",),
    "lo": ("LAO",),
    "my": ("MYANMAR",),
    "km": ("KHMER",),
    "bo": ("TIBETAN",),
    "ka": ("GEORGIAN",),
    "hy": ("ARMENIAN",),
    "el": ("GREEK",),
    **dict.fromkeys(("am", "ti"), ("ETHIOPIC",)),
}
# Words that say a network reads all of them.
_ANY = frozenset({"*", "mul", "multilingual"})
# First words of Unicode names that are no script's name, or another name for one.
_NAMES = {"CJK": "HAN", "IDEOGRAPHIC": "HAN", "KANGXI": "HAN", "HENTAIGANA": "HIRAGANA"}


def outside(text: str, languages: Iterable[str]) -> bool:
    """Whether a text is written in scripts that the network was not trained on.

    Args:
        text: Without any prefix that a convention puts before it.
        languages: Language codes (``en``, ``zh-Hans`` ...) of the network; ``mul`` stands for all, none says nothing.
    """
    codes = frozenset(code.lower().partition("-")[0] for code in languages)
    if not codes or codes & _ANY:
        return False
    known = _known(codes)
    if "LATIN" in known and text.isascii():
        return False
    inside = foreign = 0
    emoji = False
    # The folded form has plain letters for fullwidth, mathematical and ligature ones.
    for character in unicodedata.normalize("NFKC", text):
        script = script_of(character)
        if script == "EMOJI":
            emoji = True
        elif script in known:
            inside += _WEIGHTS.get(script, 1)
        elif script:
            foreign += _WEIGHTS.get(script, 1)
    if inside + foreign == 0:
        return emoji
    return foreign > OUTSIDE_SHARE * (inside + foreign)


@functools.lru_cache(maxsize=1 << 14)
def script_of(character: str) -> str:
    """``LATIN``, ``HAN``, ``CYRILLIC`` ... for a letter, ``EMOJI`` for a pictograph, and "" for anything else."""
    category = unicodedata.category(character)
    if category[0] == "L":
        first = unicodedata.name(character, "").partition(" ")[0].partition("-")[0]
        if first == "MODIFIER":
            return ""
        # A letter without a name here is of a script newer than this Python's tables: certainly foreign.
        return _NAMES.get(first, first) or "UNKNOWN"
    if category == "So" and (character >= "\U0001f000" or "\u2600" <= character <= "\u27bf"):
        return "EMOJI"
    return ""


@functools.lru_cache(maxsize=64)
def _known(codes: frozenset[str]) -> frozenset[str]:
    return frozenset(script for code in codes for script in _SCRIPTS.get(code, ("LATIN",)))
