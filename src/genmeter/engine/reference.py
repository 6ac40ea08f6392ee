"""A reference set in one file: encoded once, used by many runs, refused where it does not fit.

The file is a safetensors file. Its metadata holds under ``entries`` one record for each encoder and view: what the
features were made with, how many they are, and a digest of what went in. The tensors of entry i are ``i.digests``
(u, 32; the SHA-256 of each different file) with ``i.values`` (n, d) float32 and ``i.units`` (n,), the file of each
row; or, of a set that is kept as moments, ``i.mean`` (d,) and ``i.cov`` (d, d; n - 1), float64.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from genmeter import __version__
from genmeter.config import RunConfig
from genmeter.contract import Json, Moments, Need, Rows
from genmeter.engine.catalog import Catalog
from genmeter.engine.gather import Gathered
from genmeter.engine.keys import decoder_version, view_id
from genmeter.engine.store import temporary_name
from genmeter.registry import Variant
from genmeter.stats.moments import moments_of
from genmeter.weights.safefile import write_safetensors


class Notes(Protocol):
    """Whoever hears what the user should know."""

    def note(self, message: str) -> None: ...


SCHEMA = "genmeter.reference/1"
# What must agree between the set and the run, and what it is called in a message.
_MUST = {
    "encoder": "encoder",
    "model": "network",
    "weights": "weights",
    "preprocessing": "preprocessing",
    "code": "encoder version",
    "precision": "precision",
    "view": "view",
}
# What moves numbers within the stated tolerance only; said, not refused.
_MAY = {"device": "kind of device", "decoder": "decoder"}
_TYPES = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "U8": np.uint8}


class Entry(NamedTuple):
    """The features of one encoder in one view.

    Attributes:
        about: Its record.
        files: The features.
        metrics: Names of the metrics it was made for.
    """

    about: Mapping[str, Json]
    files: Gathered
    metrics: tuple[str, ...]


def provenance(variant: Variant, catalog: Catalog) -> dict[str, Json]:
    """What the reference features of a metric are made with on this machine.

    Raises:
        ValueError: The metric does not compare sets of references.
    """
    need = reference_need(variant)
    encoder = catalog.encoder(str(need.encoder), variant.models.get(need.name))
    spec = catalog.encoders[encoder].spec
    return {
        "encoder": spec.name,
        "model": spec.model,
        "weights": spec.digest,
        "preprocessing": spec.preprocessing,
        "code": spec.version,
        "precision": catalog.precision,
        "view": dict(need.view),
        "device": catalog.device_kind,
        "decoder": decoder_version(need.modality),
        "fingerprint": catalog.fingerprint(encoder, catalog.view(need.modality, need.view)).hex,
        "modality": need.modality,
    }


def reference_need(variant: Variant) -> Need:
    """What a set metric reads of references. Raises ``ValueError`` for a metric that has no set of them."""
    if variant.spec.scope == "set":
        for need in variant.needs:
            if need.roles == ("reference",) and need.encoder is not None:
                return need
    raise ValueError(f"{variant.name} does not compare sets, so it has no reference set")


def write_reference(path: Path, entries: Iterable[Entry], *, moments: bool = False) -> None:
    """Write a reference set, whole or not at all.

    Args:
        path: The file.
        entries: Its features.
        moments: Keep mean and covariance only: a few megabytes whatever the number, and nobody can tell from them
            what was in the set; but no metric that compares rows with rows can use them.

    Raises:
        ValueError: An entry has too few rows for a covariance.
    """
    records: list[Json] = []
    tensors: dict[str, np.ndarray] = {}
    for index, entry in enumerate(entries):
        files = entry.files
        digests = np.frombuffer(files.digests.astype("S32").tobytes(), np.uint8).reshape(-1, 32)
        tensors[f"{index}.digests"] = digests
        if moments:
            found = moments_of(files.values)
            tensors[f"{index}.mean"], tensors[f"{index}.cov"] = found.mean, found.cov
        else:
            tensors[f"{index}.values"] = np.asarray(files.values, dtype=np.float32)
            tensors[f"{index}.units"] = files.unit.astype(np.int64)
        records.append(
            {
                **entry.about,
                "metrics": list(entry.metrics),
                "kind": "moments" if moments else "features",
                "n": len(files.values),
                "files": len(files.digests),
                "width": int(files.values.shape[1]),
                "digest": f"sha256:{hashlib.sha256(digests.tobytes()).hexdigest()}",
            }
        )
    metadata = {"schema": SCHEMA, "genmeter": __version__, "entries": json.dumps(records, sort_keys=True)}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
        with open(temporary, "wb") as file:
            write_safetensors(file, tensors, metadata)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


class ReferenceSet:
    """A reference set on disk; features stay there until they are used.

    Args:
        path: The file.

    Attributes:
        entries: The record of each entry.
        digest: SHA-256 over the whole file, hex.

    Raises:
        ValueError: The file cannot be read, or is no reference set.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                self.digest = _digest(file)
            metadata, self._tensors = _mapped(path)
            if metadata.get("schema") != SCHEMA:
                raise ValueError("it is of another kind")
            self.entries: list[dict[str, Json]] = json.loads(metadata["entries"])
        except OSError as error:
            raise ValueError(f"--reference-set {path}: cannot be read ({error.strerror})") from None
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"--reference-set {path}: is no reference set, or a damaged one ({error}); "
                "`genmeter reference` makes one"
            ) from None

    def check(self, variant: Variant, catalog: Catalog) -> list[str]:
        """Whether the set fits a metric as this run computes it.

        Returns:
            What differs without making it unfit (kind of device, decoder), in sentences.

        Raises:
            ValueError: Nothing in it fits; the message says what is there and what differs.
        """
        return self._fitting(variant, catalog)[1]

    def of(self, variant: Variant, catalog: Catalog) -> Rows | Moments:
        """The reference side of a metric. Raises ``ValueError`` as :meth:`check`."""
        index, _ = self._fitting(variant, catalog)
        about = self.entries[index]
        digests = np.frombuffer(np.ascontiguousarray(self._tensors[f"{index}.digests"]).tobytes(), dtype="S32")
        if about["kind"] == "moments":
            mean, cov = (np.array(self._tensors[f"{index}.{part}"]) for part in ("mean", "cov"))
            return Moments(mean, cov, int(about["n"]))
        values, units = self._tensors[f"{index}.values"], np.array(self._tensors[f"{index}.units"])
        lines = np.full(len(values), -1, dtype=np.int64)
        return Rows(values, digests[units], lines, None, units)

    def describe(self, variant: Variant, catalog: Catalog) -> dict[str, Json]:
        """What run.json says of the set that a metric was compared with."""
        about = self.entries[self._fitting(variant, catalog)[0]]
        return {key: about[key] for key in ("kind", "n", "files", "digest")}

    def _fitting(self, variant: Variant, catalog: Catalog) -> tuple[int, list[str]]:
        wanted = provenance(variant, catalog)
        nearest: list[str] | None = None
        for index, about in enumerate(self.entries):
            wrong = [name for key, name in _MUST.items() if not _same(key, about.get(key), wanted[key])]
            if not wrong:
                notes = [
                    f"{variant.name}: the reference set was encoded with another {name} ({about.get(key)}, now "
                    f"{wanted[key]}); distances differ within the stated tolerance"
                    for key, name in _MAY.items()
                    if about.get(key) != wanted[key]
                ]
                return index, notes
            if about.get("encoder") == wanted["encoder"] and (nearest is None or len(wrong) < len(nearest)):
                nearest = [
                    f"{name}: {_show(about.get(key))}, now {_show(wanted[key])}"
                    for key, name in _MUST.items()
                    if name in wrong
                ]
        held = sorted({name for about in self.entries for name in about.get("metrics", ())})
        if nearest is None:
            raise ValueError(
                f"--reference-set {self.path}: holds nothing for {variant.name}, only features of {', '.join(held)}; "
                f"make one with `genmeter reference IN --metrics {variant.name}`"
            )
        raise ValueError(
            f"--reference-set {self.path}: does not fit {variant.name}: {'; '.join(nearest)}. "
            f"Encode it again with `genmeter reference`, or score with the settings it was made with"
        )


def open_reference_set(config: RunConfig, catalog: Catalog, observer: Notes) -> ReferenceSet | None:
    """The reference set of a configuration, once it is known to fit every set metric that was asked for by name.

    Raises:
        ValueError: It cannot be used.
    """
    if config.reference_set is None:
        return None
    found = ReferenceSet(Path(config.reference_set))
    for name in catalog.explicit or ():
        variant = catalog.variant(name)
        if variant.spec.scope == "set":
            for note in found.check(variant, catalog):
                observer.note(note)
    return found


def _same(key: str, held: Any, wanted: Any) -> bool:
    if key == "view":
        return view_id(held or {}) == view_id(wanted)
    # Weights without a digest cannot be told from others.
    return bool(held == wanted and (key != "weights" or wanted))


def _show(value: Any) -> str:
    text = view_id(value) if isinstance(value, Mapping) else str(value)
    return text if len(text) <= 40 or isinstance(value, Mapping) else f"{text[:12]}..."


def _digest(file: Any) -> str:
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def _mapped(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Metadata and tensors of a safetensors file, left on disk until they are read."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= size - 8:
            raise ValueError("its header is cut")
        header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, stop = entry["data_offsets"]
        dtype, shape = np.dtype(_TYPES[entry["dtype"]]), tuple(entry["shape"])
        if not 0 <= start <= stop <= size - 8 - length or stop - start != int(np.prod(shape)) * dtype.itemsize:
            raise ValueError("its data are cut")
        if stop == start:
            tensors[name] = np.zeros(shape, dtype)
        else:
            tensors[name] = np.memmap(path, dtype, "r", 8 + length + start, shape)
    return header.get("__metadata__", {}), tensors
