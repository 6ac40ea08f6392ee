"""Whether a folder lies on a network file system, where SQLite's write-ahead log is not safe."""

from __future__ import annotations

import os
from pathlib import Path

_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "beegfs", "gpfs", "ceph", "glusterfs", "fuse.sshfs", "9p"}
)


def on_network(folder: Path) -> bool:
    """Whether the file system of a folder is one of the network's. Unknown counts as local."""
    target = os.path.realpath(folder)
    best, kind = "", ""
    try:
        with open("/proc/mounts", encoding="utf-8", errors="replace") as file:
            for line in file:
                _, mount, system, *_ = line.split(" ")
                inside = target == mount or target.startswith(mount.rstrip("/") + "/")
                if inside and len(mount) >= len(best):
                    best, kind = mount, system
    except OSError:
        return False
    return kind in _NETWORK_FILE_SYSTEMS
