"""Captions of sounds: true, whole, and unlike for unlike sounds, in both languages and all wordings."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from genmeter.synth import words_sound_zh
from genmeter.synth.sound_scene import BEATS, FIELDS, NOISES, PITCHES, WAVES, Event, SoundScene, make_sound
from genmeter.synth.words_sound import LANGUAGES, caption


def sound(*events: Event) -> SoundScene:
    return SoundScene(events, 0)


TONE = Event("tone", "sine", "", "low", "", "steady")
CHORD = Event("chord", "sawtooth", "minor", "high", "", "plucked")
SWEEPS = Event("sweep", "square", "rising", "", "fast", "fade in")
SWEEP = Event("sweep", "triangle", "falling", "", "slow", "fade out")
NOISE = Event("noise", "white", "", "", "", "plucked")
BAND = Event("band", "", "", "medium", "", "tremolo")
BEAT = Event("rhythm", "drum", "", "", "fast", "fade in")
ALL = [
    Event(kind, **dict(zip(f, words, strict=True)))
    for kind, f in FIELDS.items()
    for words in itertools.product(*f.values())
]


@pytest.mark.parametrize(
    ("event", "english", "chinese"),
    [
        (TONE, "a steady low sine tone", "平稳的低音正弦波单音"),
        (CHORD, "a plucked high minor chord of sawtooth waves", "弹拨的高音锯齿波小三和弦"),
        (SWEEPS, "fast rising square sweeps that fade in", "渐强的快速反复上升的方波扫频音"),
        (SWEEP, "a slow falling triangle sweep that fades out", "渐弱的缓慢下降的三角波扫频音"),
        (NOISE, "a burst of white noise", "一阵短促的白噪声"),
        (BAND, "a medium band of noise with tremolo", "颤动的中音窄带噪声"),
        (BEAT, "fast drum beats that fade in", "渐强的快速的鼓点"),
    ],
)
def test_captions(event: Event, english: str, chinese: str) -> None:
    assert caption(sound(event)) == english
    assert caption(sound(event), "zh") == chinese


def test_events_come_in_order() -> None:
    assert caption(sound(SWEEP, NOISE)) == "a slow falling triangle sweep that fades out, then a burst of white noise"
    assert caption(sound(NOISE, TONE), "zh") == "先是一阵短促的白噪声，然后是平稳的低音正弦波单音"
    for language in LANGUAGES:
        for wording in range(60):
            assert caption(sound(TONE, BEAT), language, wording) != caption(sound(BEAT, TONE), language, wording)


@pytest.mark.parametrize(
    ("event", "english", "chinese"),
    [
        (Event("tone"), "a tone", "单音"),
        (Event("tone", pitch="high"), "a high tone", "高音单音"),
        (Event("chord", form="major"), "a major chord", "大三和弦"),
        (Event("chord", "sine"), "a chord of sine waves", "正弦波和弦"),
        (Event("sweep", form="rising"), "a rising sweep", "上升的扫频音"),
        (Event("noise"), "noise", "噪声"),
        (Event("noise", envelope="plucked"), "a burst of noise", "一阵短促的噪声"),
        (Event("band"), "a band of noise", "窄带噪声"),
        (Event("rhythm"), "beats", "节拍"),
        (Event("rhythm", "click"), "clicks", "咔嗒声"),
    ],
)
def test_what_is_open_is_left_unsaid(event: Event, english: str, chinese: str) -> None:
    assert caption(sound(event)) == english
    assert caption(sound(event), "zh") == chinese


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_two_events_are_called_alike_in_any_wording(language: str) -> None:
    assert len(ALL) == 276
    meant: dict[str, Event] = {}
    for event, wording in itertools.product(ALL, range(25)):
        text = caption(sound(event), language, wording)
        assert meant.setdefault(text, event) == event, text


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_wording_is_a_number(language: str) -> None:
    scenes = [make_sound(seed) for seed in range(50)]
    for scene in scenes:
        assert caption(scene, language) == caption(scene, language, 0)
        assert caption(scene, language, 7) == caption(scene, language, 7)
    assert len({caption(sound(TONE, BAND), language, wording) for wording in range(200)}) > 100


def test_every_field_is_in_the_caption() -> None:
    for language, event in itertools.product(LANGUAGES, (TONE, CHORD, SWEEPS, NOISE, BAND, BEAT)):
        for name, words in FIELDS[event.kind].items():
            others = [replace(event, **{name: word}) for word in (*words, "")]
            assert len({caption(sound(other), language) for other in others}) == len(words) + 1, name


def test_chinese_words_are_complete() -> None:
    assert set(words_sound_zh.VOICES) == set(WAVES)
    assert set(words_sound_zh.NOISES) == {*NOISES, ""}
    assert set(words_sound_zh.BEATS) == {*BEATS, ""}
    assert set(words_sound_zh.PITCHES) == set(PITCHES)


def test_an_article_fits_its_word() -> None:
    texts = [caption(make_sound(seed), "en", seed + 1) for seed in range(3000)]
    words = [pair for text in texts for pair in itertools.pairwise(text.replace(",", "").split())]
    assert all(after[0] not in "aeiou" for word, after in words if word == "a")
    assert all(after[0] in "aeiou" for word, after in words if word == "an")
    assert any(word == "an" for word, _ in words)
    assert not [text for text in texts if "  " in text or "{" in text or text != text.strip()]


def test_an_unknown_language_is_named() -> None:
    with pytest.raises(ValueError, match=r"'xx'.*en"):
        caption(sound(TONE), "xx")
