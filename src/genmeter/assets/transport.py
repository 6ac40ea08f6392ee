"""Formats made for discs, air and live streams: MPEG transport and program streams, and FLV. Each is a chain."""

from __future__ import annotations

import numpy as np

from genmeter.assets.containers import cut_short

_PACKET = 188
_SYNC = 0x47
_NO_PID = 0x1FFF  # stuffing
_PACK, _END, _FIRST_STREAM = 0xBA, 0xB9, 0xBB


def check_transport(data: memoryview) -> None:
    """Check the packets of an MPEG-TS (ISO 13818-1, 2.4.3): in step, and each stream's counted without a gap.

    Raises:
        GenmeterError: ``decode_failed``.
    """
    whole = len(data) // _PACKET * _PACKET
    if whole != len(data) and any(data[whole:]):
        raise cut_short("the last packet of the MPEG-TS is not whole")
    packets = np.frombuffer(data[:whole], np.uint8).reshape(-1, _PACKET)
    if (packets[:, 0] != _SYNC).any():
        raise cut_short("the MPEG-TS holds something that is no packet")
    if (packets[:, 1] & 0x80).any():
        raise cut_short("the MPEG-TS holds packets that are marked as damaged")
    streams = (packets[:, 1].astype(np.uint16) & 0x1F) << 8 | packets[:, 2]
    adapted = (packets[:, 3] & 0x20 != 0) & (packets[:, 4] > 0)
    jumps = adapted & (packets[:, 5] & 0x80 != 0)  # discontinuity_indicator
    counted = packets[:, 3] & 0x10 != 0
    for stream in np.unique(streams):
        rows = (streams == stream) & counted
        steps = np.diff(packets[rows, 3] & 15) & 15
        # A packet may come twice.
        if stream != _NO_PID and (~np.isin(steps, (0, 1)) & ~jumps[rows][1:]).any():
            raise cut_short("packets are missing within the MPEG-TS")


def check_program(data: memoryview) -> None:
    """Walk the packets of an MPEG-PS (ISO 13818-1, 2.5.3). Raises ``decode_failed``."""
    at = 0
    while at < len(data):
        if at + 6 > len(data) or bytes(data[at : at + 3]) != b"\0\0\1":
            if at and not any(data[at:]):
                return  # padding
            raise cut_short("the MPEG-PS holds something that is no packet")
        kind = data[at + 3]
        if kind == _END:
            at += 4
        elif kind == _PACK:
            newer = data[at + 4] >> 6 == 1
            if newer and at + 14 > len(data):
                raise cut_short("the last packet of the MPEG-PS is not whole")
            at += 14 + (data[at + 13] & 7) if newer else 12
        elif kind >= _FIRST_STREAM:
            at += 6 + int.from_bytes(data[at + 4 : at + 6], "big")
        else:
            raise cut_short("the MPEG-PS holds something that is no packet")
        if at > len(data):
            raise cut_short("the last packet of the MPEG-PS is not whole")


def check_tags(data: memoryview) -> None:
    """Walk the tags of an FLV, each of which ends with its own size. Raises ``decode_failed``."""
    at = int.from_bytes(data[5:9], "big") + 4
    while at < len(data):
        if at + 11 > len(data):
            raise cut_short("the last tag of the FLV is not whole")
        size = 11 + int.from_bytes(data[at + 1 : at + 4], "big")
        if at + size + 4 > len(data):
            raise cut_short("the last tag of the FLV is not whole")
        if data[at] & 0x1F not in (8, 9, 18) or int.from_bytes(data[at + size : at + size + 4], "big") != size:
            raise cut_short("the FLV holds something that is no tag")
        at += size + 4
