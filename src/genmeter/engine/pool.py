"""The encoders of a run: made when first needed, loaded when first used, and run under the engine's torch settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from genmeter.contract import Encoder, Feature, Precision, Prepared
from genmeter.encoders.registry import create_encoder
from genmeter.engine import batching, device
from genmeter.engine.catalog import Catalog
from genmeter.engine.plan import RAW, Window
from genmeter.errors import GenmeterError
from genmeter.weights.manager import ensure

# Leave this share of what the CPU has free to everybody else before an item counts as too large.
_CPU_SHARE = 0.8


class EncoderPool:
    """Encoders by catalog index.

    Args:
        catalog: What the indices stand for.
        place: ``cpu`` or ``cuda:i``.
        precision: ``exact`` or ``fast``.
        offline: Never open a socket for weights.
        batch_size: Items per batch, or None to derive it from each encoder's own estimate.
        progress: Told about downloads; passed to the weight manager.
    """

    def __init__(
        self,
        catalog: Catalog,
        place: str,
        precision: Precision = "exact",
        *,
        offline: bool = False,
        batch_size: int | None = None,
        progress: Any = None,
    ) -> None:
        self.catalog, self.place, self.precision = catalog, place, precision
        self._offline, self._batch_size, self._progress = offline, batch_size, progress
        self._encoders: dict[int, Encoder] = {}
        self._loaded: set[int] = set()
        self._failed: dict[int, GenmeterError] = {}
        self._on_cpu: dict[int, Encoder] = {}

    def encoders(self, window: Window) -> Mapping[int, Encoder]:
        """An encoder, loaded or not, for every index that a window uses."""
        for index in {unit.encoder for unit in window.units} - {RAW}:
            if index not in self._encoders and index not in self._failed:
                try:
                    self._encoders[index] = self._create(index)
                except GenmeterError as error:
                    self._failed[index] = error
        return self._encoders

    def ready(self, index: int) -> None:
        """Make and load an encoder before any window asks for it. Raises the error that its samples would get."""
        if index not in self._encoders and index not in self._failed:
            self._encoders[index] = self._create(index)
        self.load(index)

    def _create(self, index: int) -> Encoder:
        use = self.catalog.encoders[index]
        return create_encoder(use.name, use.entry, self._fetch(index))

    def _fetch(self, index: int) -> Callable[[], Path]:
        entry = self.catalog.encoders[index].entry
        return lambda: ensure(entry, offline=self._offline, progress=self._progress)

    def failure(self, index: int) -> GenmeterError | None:
        """Why an encoder could not be loaded, when that was tried."""
        return self._failed.get(index)

    def load(self, index: int) -> None:
        """Load an encoder on first use. Raises the same error each time it cannot be."""
        if index in self._failed:
            raise self._failed[index]
        if index in self._loaded:
            return
        try:
            # What has no weights is no network, and need not wait for torch.
            network = bool(self.catalog.encoders[index].entry.sources)
            with (
                device.torch_settings(self.precision, needed=network),
                device.own_random_numbers(self.place, needed=network),
            ):
                self._encoders[index].load(self.place, self.precision)
        except GenmeterError as error:
            self._failed[index] = error
            raise
        except ImportError as error:
            self._failed[index] = failure = GenmeterError(
                "extra_missing", f"{error.name or error} is not installed", "install it with pip"
            )
            raise failure from None
        except (Exception, SystemExit) as error:
            self._failed[index] = failure = self._unloadable(index, error)
            raise failure from None
        self._loaded.add(index)

    def _unloadable(self, index: int, error: BaseException) -> GenmeterError:
        model = self.catalog.encoders[index].entry.id
        if device.is_out_of_memory(error):
            device.release_cached_memory(self.place)
            return GenmeterError(
                "out_of_memory",
                f"{model} does not fit into the memory of {self.place} that is free",
                "end what else runs there, or use another --device; the same command then goes on",
            )
        what = f"{model} cannot be loaded on {self.place}: {type(error).__name__}: {error}"
        return GenmeterError("internal", what, "please report it")

    def batch_limit(self, index: int, bucket: str, shape: tuple[int, ...]) -> int:
        """Items per batch; depends on shape, device and settings only."""
        budget = device.memory_budget(self.place)
        try:
            return batching.batch_limit(self._encoders[index], shape, budget, self._batch_size)
        except (Exception, SystemExit) as error:
            raise self._unsized(index, error) from None

    def refuse_giant(self, index: int, prepared: Prepared) -> None:
        """Raise ``too_large`` for an item that would get the process killed on a CPU, where memory errors come late."""
        if device.device_kind(self.place) != "cpu":
            return
        try:
            needed = self._encoders[index].bytes_per_item(prepared.shape)
        except (Exception, SystemExit) as error:
            raise self._unsized(index, error) from None
        if needed < device.memory_budget("cpu"):
            return
        free = device.available_memory()
        if free is not None and needed > free * _CPU_SHARE:
            size = "x".join(map(str, prepared.shape))
            raise GenmeterError(
                "too_large",
                f"an item of shape {size} needs about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free",
                "score it on a machine with more memory, or downscale it",
            )

    def _unsized(self, index: int, error: BaseException) -> GenmeterError:
        what = f"{self.catalog.encoders[index].entry.id} does not say what memory an item needs"
        return GenmeterError("internal", f"{what}: {type(error).__name__}: {error}", "please report it")

    def encode(self, index: int, items: Sequence[Prepared]) -> list[Feature | GenmeterError]:
        """Encode one batch on the run's device; each item gets a feature or a typed error."""
        fallback = None if self.place == "cpu" else lambda: self._cpu(index)
        # An encoder that runs on torch has imported it by now.
        with device.torch_settings(self.precision, needed=False):
            return batching.encode(self._encoders[index], items, self.place, fallback)

    def _cpu(self, index: int) -> Encoder:
        if index not in self._on_cpu:
            encoder = self._create(index)
            with device.own_random_numbers("cpu", needed=bool(self.catalog.encoders[index].entry.sources)):
                encoder.load("cpu", self.precision)
            self._on_cpu[index] = encoder
        return self._on_cpu[index]
