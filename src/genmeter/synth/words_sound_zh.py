"""Chinese captions of a synthetic sound; registered in :mod:`genmeter.synth.words_sound`."""

from __future__ import annotations

from genmeter.synth.sound_scene import Event, SoundScene
from genmeter.synth.wording import Wording

# The first of each is the plainest; repeated ones are likelier.
VOICES = {"sine": "正弦波", "square": "方波", "sawtooth": "锯齿波", "triangle": "三角波"}
NOISES = {
    "white": ("白噪声", "白噪声", "白噪音"),
    "pink": ("粉红噪声", "粉红噪声", "粉红噪音"),
    "brown": ("棕色噪声", "棕色噪声", "棕噪音"),
    "": ("噪声", "噪声", "噪音"),
}
BEATS = {
    "click": ("咔嗒声", "咔嗒声", "木头敲击声"),
    "drum": ("鼓点", "鼓点", "鼓声"),
    "shaker": ("沙锤声", "沙锤声", "沙沙声"),
    "": ("节拍", "节奏"),
}
PITCHES = {
    "low": ("低音", "低音", "低沉的", "低频"),
    "medium": ("中音", "中音", "中等音高的", "中频"),
    "high": ("高音", "高音", "尖锐的", "高频"),
}
CHORDS = {"major": ("大三和弦", "大三和弦", "大和弦"), "minor": ("小三和弦", "小三和弦", "小和弦"), "": ("和弦",)}
MOTIONS = {"rising": ("上升的", "上升的", "上行的"), "falling": ("下降的", "下降的", "下行的")}
PACES = {"slow": ("缓慢", "缓慢", "慢慢"), "fast": ("快速反复", "快速反复", "急速")}
TEMPI = {"slow": ("缓慢的", "缓慢的", "慢速的"), "fast": ("快速的", "快速的", "急促的")}
ENVELOPES = {
    "steady": ("平稳的", "平稳的", "持续的"),
    "fade in": ("渐强的", "渐强的", "淡入的", "越来越响的"),
    "fade out": ("渐弱的", "渐弱的", "淡出的", "越来越轻的"),
    "plucked": ("弹拨的", "弹拨的", "一弹就消失的"),
    "tremolo": ("颤动的", "颤动的", "忽强忽弱的"),
}
_BURSTS = ("一阵短促的", "一阵短促的", "短促的")
_SEQUENCES = (
    "先是{0}，然后是{1}",
    "先是{0}，然后是{1}",
    "{0}，接着是{1}",
    "{0}，然后是{1}",
    "{0}之后是{1}",
    "{1}之前是{0}",
)
_PREFIXES = ("一段声音，", "录音里有", "这是", "听到")


def caption(scene: SoundScene, w: Wording) -> str:
    """One sentence that names every field that is not empty, without a full stop."""
    phrases = [_phrase(event, w) for event in scene.events]
    text = phrases[0] if len(phrases) == 1 else w.pick(_SEQUENCES).format(*phrases)
    return w.pick(_PREFIXES) + text if w.chance(0.15) else text


def _phrase(event: Event, w: Wording) -> str:
    envelope = ""
    if event.envelope:
        burst = event.kind in ("noise", "band") and event.envelope == "plucked"
        envelope = w.pick(_BURSTS if burst else ENVELOPES[event.envelope])
    pitch = w.pick(PITCHES[event.pitch]) if event.pitch else ""
    voice = VOICES.get(event.voice, "")
    if event.kind == "tone":
        rest = pitch + voice + w.pick(("单音", "单音", "音调"))
    elif event.kind == "chord":
        rest = pitch + voice + w.pick(CHORDS[event.form])
    elif event.kind == "sweep":
        pace = w.pick(PACES[event.pace]) if event.pace else ""
        rest = pace + (w.pick(MOTIONS[event.form]) if event.form else "") + voice + w.pick(("扫频音", "扫频音", "滑音"))
    elif event.kind == "noise":
        rest = w.pick(NOISES[event.voice])
    elif event.kind == "band":
        rest = pitch + w.pick(("窄带噪声", "窄带噪声", "窄带噪音"))
    else:
        rest = (w.pick(TEMPI[event.pace]) if event.pace else "") + w.pick(BEATS[event.voice])
    return envelope + rest
