"""A folder of media, read in the way that was asked for, or that its files plainly show."""

from __future__ import annotations

from pathlib import Path

from genmeter.inputs.folder import Folder, open_folder
from genmeter.inputs.layouts import open_layout
from genmeter.inputs.listing import Listing
from genmeter.inputs.matching import open_matched


def open_media(
    root: Path, references: Path | None, prompts: Path | None, match: str | None, layout: str | None
) -> Folder | Listing:
    """Open a folder by ``--match``, by a layout, or pairing by stem.

    A layout is recognised only where nobody says what belongs to the outputs.

    Raises:
        ValueError: Options that do not fit together; as :func:`open_matched`, :func:`open_layout`, :func:`open_folder`.
    """
    if match not in (None, "stem"):
        if layout not in (None, "none"):
            raise ValueError(f"--layout {layout} says how the folder is read; leave --match out")
        return open_matched(root, str(match), references=references, prompts=prompts)
    # Whoever says what belongs to the outputs does not want it guessed.
    if layout != "none" and (layout is not None or (match is None and references is None and prompts is None)):
        if references is not None or prompts is not None:
            raise ValueError(f"--layout {layout} says how the folder is read; leave --prompts and --references out")
        found = open_layout(root, layout)
        if found is not None:
            return found
    return open_folder(root, references=references, prompts=prompts)
