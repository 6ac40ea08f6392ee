"""The contracts between metrics, encoders and the engine. Imports numpy and nothing else.

A metric says what it needs (:class:`Need`), an encoder turns media into :class:`Prepared` arrays and
those into :class:`Feature` values, and a scorer turns features into a :class:`Score`. Scorers are pure:
features in, numbers out, no torch and no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

Scalar: TypeAlias = str | int | float | bool | None
Json: TypeAlias = Any
Modality = Literal["text", "image", "audio", "video"]
Role = Literal["prompt", "prediction", "reference", "input"]
Precision = Literal["exact", "fast"]
Alpha = Literal["white", "drop"]
View: TypeAlias = Mapping[str, Scalar]


class Need(NamedTuple):
    """One thing a metric asks of a sample.

    Attributes:
        name: The key under which the scorer finds it in an item.
        encoder: The encoder that turns it into features; ``None`` hands the raw text or field over.
        modality: What kind of asset it is.
        roles: Where it stands in the sample; two roles make a pair (LPIPS).
        view: How the encoder sees it; part of every feature's key.
        text_of: Which text a prompt is. ``prompt``: what the model was told. ``caption``: what describes the output,
            which an editing instruction does not. ``target``: what describes the output of an edit. Else the path of
            the field that holds it (``metadata.source_prompt``).
        also: Modalities that are read frame by frame in its place, for tasks that make them.
        also_view: The view there: ``view``, and which frames.
        fields: What a text need without an encoder hands over beside the candidate's text, as one mapping; see
            :mod:`genmeter.schema.answers`. Its references are handed over together, as one item.
    """

    name: str
    encoder: str | None
    modality: Modality
    roles: tuple[Role, ...]
    view: View
    text_of: str = "prompt"
    also: tuple[Modality, ...] = ()
    also_view: View = {}
    fields: tuple[str, ...] = ()


class Feature(NamedTuple):
    """What an encoder returns for one unit.

    Attributes:
        values: (k, d) float32; k frames or windows, else 1.
        weights: (k,) float32, how much each row counts.
        detail: Facts for the row of the result (token count, duration, frames used ...).
        flags: Words of :data:`genmeter.errors.FLAGS`.
    """

    values: np.ndarray
    weights: np.ndarray
    detail: Mapping[str, Scalar] = {}
    flags: tuple[str, ...] = ()


class Rows(NamedTuple):
    """The features of one set, in canonical order; may be memory-mapped.

    Attributes:
        values: (n, d) float32 or float64.
        digests: (n,) ``S32``, the SHA-256 of each row's asset.
        lines: (n,) int64, the input line each row came from; -1 for a row of a stored reference set.
        own: (n,) int64 on the prediction side: the row of the reference set that is this row's own reference, -1
            where it has none; ``None`` where nobody asked.
        units: (n,) int64: the file that each row came from, where one may give several rows (windows of a sound).
            ``None``: neighbouring rows of one line and digest are one file.
        clusters: (n,) labels of one kind on both sides; rows of equal label are not independent (one prompt, an
            output and its reference). ``None``: an output goes with its own reference.
    """

    values: np.ndarray
    digests: np.ndarray
    lines: np.ndarray
    own: np.ndarray | None = None
    units: np.ndarray | None = None
    clusters: np.ndarray | None = None


class Moments(NamedTuple):
    """Mean (d,), covariance (d, d; n-1) and count of a reference set that is kept without its rows."""

    mean: np.ndarray
    cov: np.ndarray
    n: int


@dataclass(frozen=True)
class Score:
    """One finite value, with what a reader needs to judge it."""

    value: float
    detail: Mapping[str, Json] = field(default_factory=dict)
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unscored:
    """A typed reason why an item has no score; ``code`` is one of :data:`genmeter.errors.CODES`."""

    code: str
    message: str
    hint: str | None = None


@dataclass(frozen=True)
class SetScore:
    """The value of a set metric and what each row of the prediction set contributes to it.

    Attributes:
        value: The plug-in value that papers print.
        detail: Facts about the whole set (counts, corrected value, interval ...).
        rows: One mapping for each prediction row, in the order of ``Rows`` (influence ...); rows of one file repeat it.
        flags: Words of :data:`genmeter.errors.FLAGS`.
    """

    value: float
    detail: Mapping[str, Json] = field(default_factory=dict)
    rows: Sequence[Mapping[str, Json]] = ()
    flags: tuple[str, ...] = ()


class Params(Mapping[str, Any]):
    """Read-only parameters of a metric variant, readable as attributes: ``params.convention.scale``."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = {k: Params(v) if isinstance(v, Mapping) else v for k, v in values.items()}

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"no parameter {name!r}; known: {', '.join(self._values)}") from None

    def __repr__(self) -> str:
        return f"Params({self._values!r})"


class ImageMedia(NamedTuple):
    """A decoded image, upright, in sRGB byte values.

    Attributes:
        pixels: (H, W, 3) or (H, W, 4) uint8; a fourth channel is straight (not premultiplied) alpha.
        flags: What decoding had to decide (``animated_first_frame`` ...).
        detail: Facts about the file (format, mode, width, height ...).
    """

    pixels: np.ndarray
    flags: tuple[str, ...] = ()
    detail: Mapping[str, Scalar] = {}

    @property
    def transparent(self) -> bool:
        """Whether any pixel is not fully opaque."""
        return self.pixels.shape[2] == 4 and bool((self.pixels[..., 3] != 255).any())

    def rgb(self, alpha: Alpha = "white") -> np.ndarray:
        """(H, W, 3) uint8 with alpha composited on white, or dropped as many published scripts do."""
        if self.pixels.shape[2] == 3:
            return self.pixels
        colour = self.pixels[..., :3]
        if alpha == "drop" or not self.transparent:
            return np.ascontiguousarray(colour)
        opacity = self.pixels[..., 3:].astype(np.uint16)
        # Rounded integer form of colour*a + 255*(1-a); exact at a = 0 and a = 255.
        return ((colour * opacity + 255 * (255 - opacity) + 127) // 255).astype(np.uint8)


class AudioMedia(NamedTuple):
    """Decoded audio: samples (n,) float32 in [-1, 1] mono, at ``rate`` Hz."""

    samples: np.ndarray
    rate: int
    flags: tuple[str, ...] = ()
    detail: Mapping[str, Scalar] = {}


class VideoMedia(NamedTuple):
    """Decoded frames (t, H, W, 3) uint8 with their timestamps (t,) float64 in seconds."""

    frames: np.ndarray
    times: np.ndarray
    flags: tuple[str, ...] = ()
    detail: Mapping[str, Scalar] = {}


Media: TypeAlias = str | ImageMedia | AudioMedia | VideoMedia

# What decoding is asked for. Audio: ``rate`` in Hz (else the file's own). Video: ``frames`` with ``start`` (first,
# center, random), ``stride`` and ``sampling`` (index, time; with ``fps``), or ``spread`` for that many frames spread
# evenly; empty for all of it.
Decoding: TypeAlias = Mapping[str, Scalar]


class Prepared(NamedTuple):
    """What goes into a batch: the arrays of one unit in one view.

    Attributes:
        arrays: One array for each source, each (k, ...): k frames or windows, 1 for an image or a text.
            Items share a batch when their arrays agree in dtype and in all but the first axis.
        weights: (k,) float32.
        detail: Passed on to the feature.
        flags: Passed on to the feature.
    """

    arrays: tuple[np.ndarray, ...]
    weights: np.ndarray
    detail: Mapping[str, Scalar] = {}
    flags: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes the arrays hold, for the byte-bounded queues."""
        return sum([a.nbytes for a in self.arrays])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one frame, window or image of the first source."""
        return tuple(self.arrays[0].shape[1:])

    @property
    def bucket(self) -> str:
        """What items of one batch have in common: dtype and shape of each array, less the first axis."""
        return ";".join([f"{a.dtype.str}{a.shape[1:]}" for a in self.arrays])


@dataclass(frozen=True)
class EncoderSpec:
    """What is known of an encoder before torch is imported.

    Attributes:
        name: The encoder's registered name (``lpips``).
        model: The id of its models.lock entry (``lpips-alex``).
        digest: SHA-256 over the canonical tensors; empty while nobody has stated one (never cached then).
        preprocessing: A short stable id of everything ``prepare`` does; any change of it changes the id.
        version: Version of the encoder's own code; raised when its numbers could move.
        pair: Whether a unit has two sources that are joined (LPIPS).
        languages: Languages the text side was trained on; empty when it has none.
    """

    name: str
    model: str
    digest: str
    preprocessing: str
    version: int = 1
    pair: bool = False
    languages: tuple[str, ...] = ()


class Encoder(Protocol):
    """A network and its preprocessing. ``prepare`` runs in decode workers, ``encode`` on the device."""

    spec: EncoderSpec

    def prepare(self, media: Media, view: View) -> Prepared:
        """Turn decoded media into arrays; numpy and Pillow only, thread-safe. Raises ``GenmeterError``."""
        ...

    def load(self, device: str, precision: Precision) -> None:
        """Load the weights onto ``device`` and answer the probe. Raises ``GenmeterError``."""
        ...

    def encode(self, batch: Sequence[Prepared]) -> list[Feature]:
        """Encode items of one bucket; the result for an item does not depend on its neighbours."""
        ...

    def bytes_per_item(self, shape: tuple[int, ...]) -> int:
        """Peak working memory of ``encode`` for one item of this shape, in bytes."""
        ...


@runtime_checkable
class MediaEncoder(Protocol):
    """An encoder that wants part of a clip, or audio at a rate of its own, so that no more than that is decoded."""

    def decoding(self, view: View) -> Decoding:
        """What decoding has to deliver for a view: ``rate`` for audio, which frames for video."""
        ...


@runtime_checkable
class PairEncoder(Protocol):
    """An encoder whose unit has two sources; ``join`` sees both before they enter a batch."""

    def join(self, parts: Sequence[Prepared], view: View) -> Prepared:
        """Join the two halves, in the order of the need's roles; raises e.g. ``size_mismatch``."""
        ...


class SampleMetric(Protocol):
    """A metric of sample scope. An item is one candidate against one reference."""

    def score(self, items: Sequence[Mapping[str, Any]], params: Params) -> list[Score | Unscored]:
        """Score each item; ``item[need.name]`` is a :class:`Feature`, or the raw text or field."""
        ...


class SetMetric(Protocol):
    """A metric of set scope."""

    def score_set(self, prediction: Rows, reference: Rows | Moments, params: Params) -> SetScore | Unscored:
        """Score a prediction set against a reference set."""
        ...
