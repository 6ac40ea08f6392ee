"""The sizes of the CLAP networks: HTSAT for audio, RoBERTa for text, a projection behind each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from genmeter.config import nearest
from genmeter.errors import GenmeterError

if TYPE_CHECKING:
    from genmeter.weights.lock import ModelEntry

# Width of the first stage and blocks of each (laion_clap's model_configs).
_AUDIO: Mapping[str, tuple[int, tuple[int, ...]]] = {
    "HTSAT-tiny": (96, (2, 2, 6, 2)),
    "HTSAT-base": (128, (2, 2, 12, 2)),
}
_HEADS = (4, 8, 16, 32)
# roberta-base; its layer_norm_eps is stated by each entry, since the two published forms of CLAP differ in it.
_TEXT: Mapping[str, int] = {
    "vocab_size": 50265,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 514,
}


@dataclass(frozen=True)
class Architecture:
    """What a network's definitions are built from.

    Attributes:
        width: Channels of the first audio stage; each further stage doubles them.
        depths: Blocks of each audio stage.
        heads: Attention heads of each audio stage.
        fusion: Whether there is the branch that fuses four views of a long clip (LAION's ``aff_2d``).
        text: Sizes of the text tower, by transformers' names, and its ``layer_norm_eps``.
        joint: Length of a feature.
        context: Most tokens of a text.
        spec_size, patch, window: Side of the picture that a spectrogram becomes, of its patches, and of an attention
            window in patches.
        mel_bands: Mel bands.
    """

    width: int
    depths: tuple[int, ...]
    heads: tuple[int, ...]
    fusion: bool
    text: Mapping[str, Any]
    joint: int
    context: int
    spec_size: int = 256
    patch: int = 4
    window: int = 8
    mel_bands: int = 64

    @property
    def audio_features(self) -> int:
        """Length of what the audio tower gives to its projection."""
        return int(self.width * 2 ** (len(self.depths) - 1))


def architecture(entry: ModelEntry, fusion: bool, mel_bands: int) -> Architecture:
    """The architecture that an entry names.

    ``architecture`` is ``HTSAT-tiny`` or ``HTSAT-base``. ``[model.text_config]`` states ``layer_norm_eps`` and may
    replace sizes of roberta-base; ``[model.audio_config]`` may replace ``width``, ``depths`` and ``heads``.

    Raises:
        GenmeterError: ``unknown_metric`` for another architecture, ``weights_mismatch`` when the entry leaves
            something unsaid.
    """
    if entry.architecture not in _AUDIO:
        raise GenmeterError(
            "unknown_metric",
            f"{entry.id}: no architecture {entry.architecture!r}{nearest(entry.architecture, list(_AUDIO))}",
            f"known: {', '.join(_AUDIO)}",
        )
    width, depths = _AUDIO[entry.architecture]
    audio = dict(entry.extra.get("audio_config", {}))
    text = {**_TEXT, **dict(entry.extra.get("text_config", {}))}
    for where, value, kind in (
        ("text_config.layer_norm_eps", text.get("layer_norm_eps"), float),
        ("embed_dim", entry.extra.get("embed_dim"), int),
        ("context_length", entry.extra.get("context_length"), int),
    ):
        if not isinstance(value, kind) or isinstance(value, bool) or value <= 0:
            raise GenmeterError(
                "weights_mismatch",
                f"models.lock: {entry.id} states {where} = {value!r}; expected a number above 0",
                "the entry must say how its network was trained: nothing is assumed",
            )
    return Architecture(
        width=int(audio.get("width", width)),
        depths=tuple(audio.get("depths", depths)),
        heads=tuple(audio.get("heads", _HEADS)),
        fusion=fusion,
        text=text,
        joint=entry.extra["embed_dim"],
        context=entry.extra["context_length"],
        mel_bands=mel_bands,
    )
