"""One asset in many forms has one score: as a path, a URI, bytes or an object in memory, and in any lossless format."""

from __future__ import annotations

import base64
import shutil

import contract_media as media
import numpy as np
import pytest
from contract_runs import code, parametrize
from PIL import Image

INDICES = (0, 1, 2)
TWINS = {"image": ("png", "bmp", "tiff", "webp"), "audio": ("wav", "flac"), "video": ("mkv", "avi")}
MIME = {"image": "image/png", "audio": "audio/wav", "video": "video/mp4"}

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")


def written(lab, case, index):
    """Ways to write one prediction in a file of samples."""
    path = lab.path.parent / media.name(case.modality, "out", index)
    odd = path.with_name(f"ä b%20{path.name}")
    if not odd.exists():
        shutil.copyfile(path, odd)
    data = base64.b64encode(path.read_bytes()).decode()
    return {
        "relative": path.name,
        "dotted": f"./{path.name}",
        "absolute": str(path),
        "file": odd.as_uri(),
        "data": f"data:{MIME[case.modality]};base64,{data}",
        "unpadded": f"data:{MIME[case.modality]};base64,{data.rstrip('=')}",
    }


def skip_text(case):
    if case.modality == "text":
        pytest.skip("texts have one form")


@parametrize()
def test_path_file_uri_and_data_uri(case, lab):
    skip_text(case)
    lab.base()
    usual = None
    for form in written(lab, case, 0):
        lines = [media.sample(case.modality, i, outputs=[written(lab, case, i)[form]]) for i in INDICES]
        found = lab.run(f"form-{form}", lines, store="base")
        assert found.encoded == 0, "the same bytes are the same work"
        entries = found.of(case.metric)
        usual = usual or entries
        assert entries == usual, form
    assert all(code(entry) is None for entry in usual.values())
    if case.spec.scope == "sample":
        assert usual == {f"s{i}": lab.base().of(case.metric)[f"s{i}"] for i in INDICES}


@parametrize(scope="sample")
def test_bytes_and_objects_in_memory(case, lab):
    skip_text(case)
    content = media.draw(case.modality, "out", 0)
    path = lab.path.parent / f"memory.{TWINS[case.modality][0]}"
    if not path.exists():
        media.write(path, case.modality, content)
    data = path.read_bytes()
    forms = [path.name, path, data, bytearray(data), memoryview(data)]
    if case.modality == "image":
        opaque = np.dstack([content, np.full(content.shape[:2], 255, np.uint8)])
        forms += [content, np.asfortranarray(content), opaque, Image.fromarray(content), Image.open(path)]
    elif case.modality == "audio":
        samples, rate = content
        mono = (samples[:, 0] / np.float32(32768)).astype(np.float32)
        forms += [(mono, rate), (samples, rate), (samples[:, 0], rate)]
    else:
        forms += [content, np.asfortranarray(content)]
    lines = [media.sample(case.modality, 0, identity=f"f{i}", outputs=[form]) for i, form in enumerate(forms)]
    results = lab.engine(lines, batch_size=1)
    assert [result.errors.get(case.metric) for result in results] == [None] * len(forms)
    assert len({result.scores[case.metric] for result in results}) == 1


@parametrize()
def test_lossless_twins(case, lab):
    skip_text(case)
    found = {}
    for suffix in TWINS[case.modality]:
        urls = [f"twin{i}.{suffix}" for i in INDICES]
        for index, url in zip(INDICES, urls, strict=True):
            if not (lab.path.parent / url).exists():
                media.write(lab.path.parent / url, case.modality, media.draw(case.modality, "out", index))
        lines = [media.sample(case.modality, i, outputs=[url]) for i, url in zip(INDICES, urls, strict=True)]
        entries = lab.run(f"twin-{suffix}", lines).of(case.metric)
        assert [code(entry) for entry in entries.values()] == [None] * len(INDICES), suffix
        found[suffix] = [entry["score"] for entry in entries.values()]
    first = found[TWINS[case.modality][0]]
    if case.spec.scope == "sample":
        assert found == dict.fromkeys(found, first)
    else:  # the rows of a set stand in the order of their digests, which adds up to other last digits
        assert all(values == pytest.approx(first, rel=1e-9) for values in found.values())
