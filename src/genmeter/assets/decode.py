"""From a blob to decoded media: one door for every modality."""

from __future__ import annotations

from genmeter.assets import sniff
from genmeter.assets.load import Blob
from genmeter.config import Policy
from genmeter.contract import AudioMedia, ImageMedia, Media, Modality, VideoMedia
from genmeter.errors import GenmeterError

_MEDIA = {"image": ImageMedia, "audio": AudioMedia, "video": VideoMedia}


def decode(blob: Blob, modality: Modality, policy: Policy) -> Media:
    """Decode an asset as the modality that a metric asks for.

    Args:
        blob: What :func:`genmeter.assets.load.load` returned.
        modality: The kind of media that is wanted.
        policy: Its limits hold for the decoded size as well.

    Raises:
        GenmeterError: ``unsupported_media`` when the content is of another kind (or of a kind that this version
            does not decode), else as :func:`genmeter.assets.image.decode_image`.
    """
    if blob.media is not None:
        if not isinstance(blob.media, _MEDIA.get(modality, ())):
            raise GenmeterError("unsupported_media", f"expected {modality}, found another kind of object in memory")
        return blob.media
    if modality == "image":
        from genmeter.assets.image import decode_image

        return decode_image(blob.data, policy)
    found, name = sniff.kind(blob.data)
    if found != modality:
        raise GenmeterError("unsupported_media", f"expected {modality}, found {sniff.describe(found, name)}")
    raise GenmeterError(
        "unsupported_media",
        f"{modality} ({name}) is not available in this version, which decodes images",
        "score its images, or use a version that decodes audio and video",
    )
