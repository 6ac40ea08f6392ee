"""TIFF without Pillow's process-wide pixel limit: ``policy.max_pixels`` has been checked when pixels are loaded."""

from __future__ import annotations

from PIL import Image, ImageFile
from PIL.TiffImagePlugin import TiffImageFile


class TiffFile(TiffImageFile):
    """Pillow's reader, less the second bomb check that it makes while loading."""

    def load_prepare(self) -> None:
        """Allocate the image memory."""
        if self._im is None:
            self.im = Image.core.new(self.mode, self._tile_size)  # type: ignore[attr-defined]
        ImageFile.ImageFile.load_prepare(self)
