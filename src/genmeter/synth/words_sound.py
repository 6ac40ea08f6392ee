"""Captions of a synthetic sound, in two languages and many wordings. A language is a function in :data:`LANGUAGES`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from genmeter.synth import words_sound_zh
from genmeter.synth.sound_scene import Event, SoundScene
from genmeter.synth.wording import Wording


def caption(scene: SoundScene, language: str = "en", wording: int = 0) -> str:
    """One sentence that names every field of the sound, without a full stop.

    Args:
        scene: The sound. A field that is empty is left unsaid, so a partial description makes a partial caption.
        language: A key of :data:`LANGUAGES`.
        wording: 0 for the plainest words; another number draws among synonyms and orders, the same each time.

    Raises:
        ValueError: For an unknown language.
    """
    if language not in LANGUAGES:
        raise ValueError(f"language {language!r} is not among {', '.join(LANGUAGES)}")
    return LANGUAGES[language](scene, Wording(wording))


# The first of each is the plainest; repeated ones are likelier.
_VOICES = {
    "sine": ("sine", "sine", "sine wave", "pure"),
    "square": ("square", "square", "square wave"),
    "sawtooth": ("sawtooth", "sawtooth", "saw", "sawtooth wave"),
    "triangle": ("triangle", "triangle", "triangle wave"),
}
_PITCHES = {
    "low": ("low", "low", "low-pitched", "deep"),
    "medium": ("medium", "medium", "middle", "medium-pitched"),
    "high": ("high", "high", "high-pitched", "shrill"),
}
_MOTIONS = {"rising": ("rising", "rising", "ascending", "upward"), "falling": ("falling", "descending", "downward")}
_PACES = {"slow": ("slow", "slow", "long"), "fast": ("fast", "fast", "quick", "rapid")}
_TEMPI = {"slow": ("slow", "slow", "unhurried"), "fast": ("fast", "fast", "quick", "rapid")}
_BEATS = {
    "click": ("clicks", "clicks", "clicking", "wooden clicks"),
    "drum": ("drum beats", "drum beats", "drum hits", "drums"),
    "shaker": ("shaker hits", "shaker hits", "shaker beats", "shakers"),
    "": ("beats", "beats", "hits"),
}
_BEFORE = {"steady": ("steady", "steady", "constant", "even"), "plucked": ("plucked", "plucked", "struck")}
_AFTER = {
    "fade in": ("that fade{s} in", "that fade{s} in", "fading in", "that get{s} louder", "growing louder"),
    "fade out": ("that fade{s} out", "that fade{s} out", "fading out", "that get{s} quieter", "growing quieter"),
    "plucked": ("that decay{s} at once", "that die{s} away at once"),
    "tremolo": ("with tremolo", "with tremolo", "that tremble{s}", "that pulse{s}"),
}
_SEQUENCES = (
    "{0}, then {1}",
    "{0}, then {1}",
    "{0} followed by {1}",
    "first {0}, then {1}",
    "{0} and then {1}",
    "{1} after {0}",
    "{0} before {1}",
)
_PREFIXES = ("the sound of ", "a recording of ", "this is a sound of ", "we hear ")


def _english(scene: SoundScene, w: Wording) -> str:
    phrases = [_phrase(event, w) for event in scene.events]
    text = phrases[0] if len(phrases) == 1 else w.pick(_SEQUENCES).format(*phrases)
    return w.pick(_PREFIXES) + text if w.chance(0.15) else text


def _phrase(event: Event, w: Wording) -> str:
    """Adjectives, noun, and what follows it."""
    several = event.kind == "rhythm" or (event.kind == "sweep" and event.pace == "fast")
    words, noun, article = _NOUNS[event.kind](event, w)
    burst = event.kind in ("noise", "band") and event.envelope == "plucked"
    after = ""
    if event.envelope in _AFTER and (event.envelope not in _BEFORE or w.chance(0.25)) and not burst:
        after = " " + w.pick(_AFTER[event.envelope]).format(s="" if several else "s")
    elif event.envelope in _BEFORE and not burst:
        words.insert(0, w.pick(_BEFORE[event.envelope]))
    text = " ".join([*(word for word in words if word), noun])
    if burst:
        return w.pick(("a burst of ", "a burst of ", "a short burst of ")) + (_with_article(text) if article else text)
    return (_with_article(text) if article and not several else text) + after


def _with_article(text: str) -> str:
    return f"{'an' if text[0] in 'aeiou' else 'a'} {text}"


def _said(words: Mapping[str, Sequence[str]], value: str, w: Wording) -> str:
    return w.pick(words[value]) if value else ""


def _tone(event: Event, w: Wording) -> tuple[list[str], str, bool]:
    words = [_said(_PITCHES, event.pitch, w), _said(_VOICES, event.voice, w)]
    return words, w.pick(("tone", "tone", "note")), True


def _chord(event: Event, w: Wording) -> tuple[list[str], str, bool]:
    words = [_said(_PITCHES, event.pitch, w), event.form]
    if not event.voice:
        return words, "chord", True
    if w.chance(0.4):
        return [words[0], _said(_VOICES, event.voice, w), words[1]], "chord", True
    return words, f"chord of {event.voice} waves", True


def _sweep(event: Event, w: Wording) -> tuple[list[str], str, bool]:
    words = [_said(_PACES, event.pace, w), _said(_MOTIONS, event.form, w), _said(_VOICES, event.voice, w)]
    return words, w.pick(("sweep", "sweep", "glide")) + ("s" if event.pace == "fast" else ""), True


def _noise(event: Event, w: Wording) -> tuple[list[str], str, bool]:
    return [event.voice], "noise", False


def _band(event: Event, w: Wording) -> tuple[list[str], str, bool]:
    pitch = _said(_PITCHES, event.pitch, w)
    if w.chance(0.4):
        return [pitch], "band noise", False
    return [pitch], w.pick(("band of noise", "narrow band of noise")), True


def _rhythm(event: Event, w: Wording) -> tuple[list[str], str, bool]:
    return [_said(_TEMPI, event.pace, w)], w.pick(_BEATS[event.voice]), False


_NOUNS: dict[str, Callable[[Event, Wording], tuple[list[str], str, bool]]] = {
    "tone": _tone,
    "chord": _chord,
    "sweep": _sweep,
    "noise": _noise,
    "band": _band,
    "rhythm": _rhythm,
}

LANGUAGES: dict[str, Callable[[SoundScene, Wording], str]] = {"en": _english, "zh": words_sound_zh.caption}
