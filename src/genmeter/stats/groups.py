"""Groups of rows that are left out together: by content, so that neither order nor process changes them."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise

import numpy as np

GROUPS = 40


def stable_order(labels: np.ndarray) -> np.ndarray:
    """Positions of (k,) distinct labels in the order of a hash of each: the same in every process, unlike any sorting.

    Labels may be integers, bytes or text.
    """
    keys = [blake2b(_bytes(label), digest_size=16).digest() for label in labels.tolist()]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)


def deal(sides: Sequence[np.ndarray], most: int = GROUPS) -> tuple[list[np.ndarray], int]:
    """Deal clusters into groups, equally many to each.

    Rows of one cluster are never split, wherever they stand: an output and its reference that share a cluster leave
    together. Each side has rows in every group, so there are no more groups than any side has clusters.

    Args:
        sides: For each side (n,) labels; rows of one label are dependent. Labels of all sides are of one kind.
        most: Largest number of groups.

    Returns:
        For each side the group of each row, (n,) int64 in [0, G), and G.
    """
    known, inverse = np.unique(np.concatenate([np.asarray(side) for side in sides]), return_inverse=True)
    inverse = inverse.reshape(-1)
    bounds = np.cumsum([0, *(len(side) for side in sides)])
    codes = [inverse[start:stop] for start, stop in pairwise(bounds)]
    present = np.stack([np.bincount(code, minlength=len(known)) > 0 for code in codes])
    count = int(min(most, *present.sum(axis=1)))
    group = np.empty(len(known), dtype=np.int64)
    dealt = 0
    # Clusters that stand on the same sides are dealt among themselves, so that every side is spread evenly.
    kinds = np.packbits(present, axis=0).T
    for kind in np.unique(kinds, axis=0)[::-1]:
        members = np.flatnonzero((kinds == kind).all(axis=1))
        ordered = members[stable_order(known[members])]
        group[ordered] = (dealt + np.arange(len(ordered))) % max(1, count)
        dealt += len(ordered)
    return [group[code] for code in codes], count


def joined(labels: np.ndarray, content: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Join clusters whose rows hold the same content: a file that answers two prompts is one sample of neither.

    Args:
        labels: (n,) the cluster of each row.
        content: (n,) digest of each row.

    Returns:
        The different labels, ascending, and for each the position of the one that stands for all it is joined with.
    """
    known, codes = np.unique(labels, return_inverse=True)
    codes = codes.reshape(-1)
    parent = list(range(len(known)))

    def root(code: int) -> int:
        while parent[code] != code:
            parent[code] = parent[parent[code]]
            code = parent[code]
        return code

    order = np.lexsort((codes, content))
    same = content[order][1:] == content[order][:-1]
    for left, right in zip(codes[order][:-1][same].tolist(), codes[order][1:][same].tolist(), strict=True):
        one, two = root(left), root(right)
        parent[max(one, two)] = min(one, two)
    return known, np.array([root(code) for code in range(len(known))], dtype=np.int64)


def half(clusters: np.ndarray, size: int, *, last: bool = False) -> np.ndarray:
    """``size`` rows by a stable hash of their clusters, from the first on or (``last``) from the last back.

    The first and the last share no row where there are at least 2 ``size``, and no cluster but one that lies across
    the middle; so do the first of one side and the last of another whose clusters have the same labels.

    Args:
        clusters: (n,) labels, n >= ``size``.
        size: How many rows.
        last: Which end to take.

    Returns:
        (size,) row numbers, ascending.
    """
    known, codes = np.unique(clusters, return_inverse=True)
    place = np.empty(len(known), dtype=np.int64)
    place[stable_order(known)] = np.arange(len(known))
    order = np.argsort(place[codes.reshape(-1)], kind="stable")
    return np.sort(order[len(order) - size :] if last else order[:size])


def _bytes(label: object) -> bytes:
    if isinstance(label, bytes):
        return b"b" + label
    if isinstance(label, str):
        return b"s" + label.encode("utf-8", "surrogatepass")
    return b"i" + str(label).encode()
