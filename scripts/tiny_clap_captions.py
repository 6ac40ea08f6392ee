"""What a caption of a synthetic sound may say: the texts that the tiny CLAP is trained on.

A claim is a :class:`~genmeter.synth.sound_scene.SoundScene` with some fields left open (empty), and maybe an event left
out. As a table of numbers, whether a claim is true of a sound can be computed for thousands of pairs at once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from genmeter.synth.sound_scene import FIELDS, KINDS, NAMES, Event, SoundScene
from genmeter.synth.words_sound import caption

WIDTH = 1 + len(NAMES)
"""Columns of an event: its kind, then the fields; a sound has two events."""

OPEN, NO_FIELD, NO_EVENT = -1, -2, -3
ASPECTS = (*(f"{kind} {name}" for kind, fields in FIELDS.items() for name in fields), "order")
"""What a false caption gets wrong: one field of one kind of event, or which event comes first."""

# How often a field is left unsaid.
_UNSAID = {"voice": 0.25, "form": 0.15, "pitch": 0.3, "pace": 0.25, "envelope": 0.4}


def table_of(scene: SoundScene) -> np.ndarray:
    """The (2 * WIDTH,) int8 table of a sound or a claim."""
    table = np.full(2 * WIDTH, NO_EVENT, dtype=np.int8)
    for i, event in enumerate(scene.events):
        row = table[i * WIDTH : (i + 1) * WIDTH]
        row[0] = KINDS.index(event.kind)
        for column, name in enumerate(NAMES, start=1):
            words = FIELDS[event.kind].get(name)
            value = getattr(event, name)
            row[column] = NO_FIELD if words is None else words.index(value) if value else OPEN
    return table


def scene_of(table: np.ndarray) -> SoundScene:
    """The sound or claim of a table; its seed is 0."""
    events = []
    for row in (table[:WIDTH], table[WIDTH:]):
        if row[0] != NO_EVENT:
            kind = KINDS[row[0]]
            said = {name: FIELDS[kind][name][v] for name, v in zip(NAMES, row[1:], strict=True) if v >= 0}
            events.append(Event(kind, **said))
    return SoundScene(tuple(events), 0)


def holds(claims: np.ndarray, sounds: np.ndarray) -> np.ndarray:
    """Which claims are true of which sounds.

    Args:
        claims: (c, 2 * WIDTH) tables with open fields.
        sounds: (s, 2 * WIDTH) tables without.

    Returns:
        (s, c) bool. Two events of a claim must be the sound's two in this order; one must be either of them: a claim
        is not false for leaving an event out.
    """
    c, s = claims[None], sounds[:, None]
    fits = np.zeros((2, 2, len(sounds), len(claims)), dtype=bool)
    for i in (0, 1):
        asked = c[..., i * WIDTH : (i + 1) * WIDTH]
        for j in (0, 1):
            heard = s[..., j * WIDTH : (j + 1) * WIDTH]
            fits[i, j] = ((asked == OPEN) | (asked == heard)).all(axis=-1) & (heard[..., 0] != NO_EVENT)
    alone = c[..., WIDTH] == NO_EVENT
    return np.where(alone, fits[0, 0] | fits[0, 1], fits[0, 0] & fits[1, 1])


def loosen(scene: SoundScene, rng: np.random.Generator) -> SoundScene:
    """A claim about a sound with fields and maybe an event left out."""
    events = scene.events
    if len(events) == 2 and rng.random() < 0.3:
        events = (events[int(rng.integers(2))],)
    # Fields of both events are left open together, as one speaker would.
    unsaid = [name for name in NAMES if rng.random() < _UNSAID[name]]
    return replace(scene, events=tuple(replace(event, **dict.fromkeys(unsaid, "")) for event in events))


def spoil(
    claim: SoundScene, scene: SoundScene, rng: np.random.Generator, aspect: str | None = None
) -> SoundScene | None:
    """The claim with one aspect changed so that it is false of ``scene``; None where it does not state that aspect."""
    sound = table_of(scene)[None]
    for name in [aspect] if aspect else rng.permutation(_stated(claim)):
        changed = _changed(claim, str(name), rng)
        if changed is not None and not holds(table_of(changed)[None], sound)[0, 0]:
            return changed
    return None


def _stated(claim: SoundScene) -> list[str]:
    """Aspects that a claim states; those that are hard to learn, chords and the order of two events, more than once."""
    fields = [f"{e.kind} {name}" for e in claim.events for name in NAMES if getattr(e, name)]
    fields += [aspect for aspect in fields if aspect == "chord form"]
    return fields + ["order"] * (max(1, len(fields) // 2) if len(claim.events) == 2 else 0)


def _changed(claim: SoundScene, aspect: str, rng: np.random.Generator) -> SoundScene | None:
    if aspect == "order":
        return replace(claim, events=claim.events[::-1]) if len(claim.events) == 2 else None
    kind, _, name = aspect.partition(" ")
    events: list[Event] = list(claim.events)
    for i, event in enumerate(events):
        if event.kind == kind and getattr(event, name):
            others = [word for word in FIELDS[kind][name] if word != getattr(event, name)]
            events[i] = replace(event, **{name: others[int(rng.integers(len(others)))]})
            return replace(claim, events=tuple(events))
    return None


def say(claim: SoundScene, language: str, rng: np.random.Generator) -> str:
    """The claim in words: the plainest ones in a third of the cases, else drawn; sometimes with a full stop."""
    wording = 0 if rng.random() < 1 / 3 else int(rng.integers(1, 1 << 30))
    text = caption(claim, language, wording)
    return text + ("" if rng.random() < 0.85 else "。" if language == "zh" else ".")
