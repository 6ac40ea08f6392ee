"""From a blob to decoded media, in this process: images, and what is in memory already."""

from __future__ import annotations

from collections.abc import Sequence

from genmeter.assets import sniff
from genmeter.assets.limits import Limits
from genmeter.assets.load import Blob
from genmeter.config import Policy
from genmeter.contract import AudioMedia, Decoding, ImageMedia, Media, Modality, VideoMedia
from genmeter.errors import GenmeterError

_MEDIA = {"image": ImageMedia, "audio": AudioMedia, "video": VideoMedia}


def decode(blob: Blob, modality: Modality, policy: Policy) -> Media:
    """Decode an image, or take media that are in memory, as the modality that a metric asks for.

    Args:
        blob: What :func:`genmeter.assets.load.load` returned.
        modality: The kind of media that is wanted.
        policy: Its limits hold for the decoded size as well.

    Raises:
        GenmeterError: ``unsupported_media`` when the content is of another kind, else as
            :func:`genmeter.assets.image.decode_image`.
    """
    if blob.media is not None:
        [found] = decode_memory(blob, modality, ({},), policy)
        if isinstance(found, GenmeterError):
            raise found
        return found
    if blob.parts and modality != "video":
        raise GenmeterError("forbidden", f"expected a regular file with {modality}, found a folder")
    if modality == "image":
        from genmeter.assets.image import decode_image

        return decode_image(blob.data, policy)
    found_kind, name = sniff.kind(blob.data)
    if found_kind != modality:
        raise GenmeterError("unsupported_media", f"expected {modality}, found {sniff.describe(found_kind, name)}")
    raise ValueError(f"{modality} files are decoded by genmeter.assets.workers.DecodePool")


def decode_memory(
    blob: Blob, modality: Modality, requests: Sequence[Decoding], policy: Policy
) -> list[Media | GenmeterError]:
    """An object in memory as each request wants it; see :meth:`genmeter.assets.workers.DecodePool.decode`."""
    media = blob.media
    if media is None or not isinstance(media, _MEDIA.get(modality, ())):
        raise GenmeterError("unsupported_media", f"expected {modality}, found another kind of object in memory")
    if isinstance(media, AudioMedia):
        from genmeter.assets.waveform import at_rates

        return list(at_rates(media, requests, Limits.of(policy)))
    if isinstance(media, VideoMedia):
        from genmeter.assets.clip import of_requests

        return list(of_requests(media, requests, policy, blob.digest))
    return [media for _ in requests]
