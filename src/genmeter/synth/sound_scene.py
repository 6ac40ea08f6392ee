"""What a synthetic sound is made of, as data: one event, or two in sequence.

A sound is rendered by :mod:`genmeter.synth.sound` and put into words by :mod:`genmeter.synth.words_sound`. Words and
samples are made from the same fields, so a caption is true of its sound by construction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

WAVES = ("sine", "square", "sawtooth", "triangle")
NOISES = ("white", "pink", "brown")
BEATS = ("click", "drum", "shaker")
CHORDS = ("major", "minor")
MOTIONS = ("rising", "falling")
PITCHES = ("low", "medium", "high")
PACES = ("slow", "fast")
ENVELOPES = ("steady", "fade in", "fade out", "plucked", "tremolo")
_LONG = ENVELOPES[:3]  # what goes with a sound that moves by itself

FIELDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "tone": {"voice": WAVES, "pitch": PITCHES, "envelope": ENVELOPES},
    "chord": {"voice": WAVES, "form": CHORDS, "pitch": PITCHES, "envelope": ENVELOPES},
    "sweep": {"voice": WAVES, "form": MOTIONS, "pace": PACES, "envelope": _LONG},
    "noise": {"voice": NOISES, "envelope": ENVELOPES},
    "band": {"pitch": PITCHES, "envelope": ENVELOPES},
    "rhythm": {"voice": BEATS, "pace": PACES, "envelope": _LONG},
}
"""The kinds of events, and for each the fields that it has with the words they take. ``band`` is noise of one pitch."""

KINDS = tuple(FIELDS)
NAMES = ("voice", "form", "pitch", "pace", "envelope")
"""Fields of an event beside its kind."""

# Kinds with more to say come more often.
_DRAWN = ("tone", "tone", "chord", "chord", "sweep", "sweep", "noise", "band", "rhythm", "rhythm")


@dataclass(frozen=True)
class Event:
    """One sound that lasts. A field that its kind does not have is empty; in a partial description, so may others be.

    Attributes:
        kind: A key of :data:`FIELDS`.
        voice: Wave form, colour of noise, or what beats.
        form: ``major`` or ``minor`` of a chord, ``rising`` or ``falling`` of a sweep.
        pitch: ``low``, ``medium`` or ``high``.
        pace: A slow sweep takes the whole event, fast ones come one after another; the tempo of a rhythm.
        envelope: How loudness goes.
    """

    kind: str
    voice: str = ""
    form: str = ""
    pitch: str = ""
    pace: str = ""
    envelope: str = ""


@dataclass(frozen=True)
class SoundScene:
    """One sound: one event, or two of unlike kinds in sequence. ``seed`` fixes frequencies, timing and noise."""

    events: tuple[Event, ...]
    seed: int


class Change(NamedTuple):
    """One difference between two sounds: ``what`` is a field of :class:`Event`, in ``event``; ``order`` (-1) swaps."""

    what: str
    event: int
    value: str


def make_sound(seed: int) -> SoundScene:
    """The sound of a seed (a non-negative integer): half of them single events, every field drawn evenly."""
    rng = np.random.default_rng([seed, 5])
    first = _pick(rng, _DRAWN)
    kinds: tuple[str, ...] = (first,)
    if rng.integers(2):
        kinds = (first, _pick(rng, tuple(k for k in _DRAWN if k != first)))
    events = tuple(Event(kind, **{name: _pick(rng, words) for name, words in FIELDS[kind].items()}) for kind in kinds)
    return SoundScene(events, seed)


def make_change(scene: SoundScene, seed: int, what: str | None = None) -> tuple[SoundScene, Change]:
    """A sound that differs in one field or in the order of its events, and what was changed; the seed stays.

    Args:
        scene: A sound with no field left open.
        seed: Which change, and to what.
        what: ``order`` or a field of :class:`Event`; drawn where it is left out.

    Raises:
        ValueError: When no event has the field ``what``, or a lone event was to change its order.
    """
    rng = np.random.default_rng([seed, 6])
    choices = [Change(name, i, "") for i, e in enumerate(scene.events) for name in FIELDS[e.kind]]
    if len(scene.events) == 2:
        choices.append(Change("order", -1, ""))
    if what is not None:
        choices = [choice for choice in choices if choice.what == what]
    if not choices:
        raise ValueError(f"this sound has no {what!r} to change")
    choice = choices[int(rng.integers(len(choices)))]
    if choice.what == "order":
        return replace(scene, events=scene.events[::-1]), choice
    event = scene.events[choice.event]
    others = tuple(w for w in FIELDS[event.kind][choice.what] if w != getattr(event, choice.what))
    value = _pick(rng, others)
    changed = replace(event, **{choice.what: value})
    events = tuple(changed if i == choice.event else e for i, e in enumerate(scene.events))
    return replace(scene, events=events), choice._replace(value=value)


def _pick(rng: np.random.Generator, words: tuple[str, ...]) -> str:
    return words[int(rng.integers(len(words)))]
