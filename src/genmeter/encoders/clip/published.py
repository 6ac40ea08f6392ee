"""What is publicly known of the files that CLIP weights come in: which activation they were trained with.

No tensor of a checkpoint tells its activation, and the wrong one loads without complaint and shifts every score. So a
file that is known by its hash must not be used with another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from genmeter.weights.lock import ModelEntry

# SHA-256 of the files. OpenAI's own hashes are part of their addresses; the others are those of their copies on a hub.
_QUICKGELU = {
    "40d365715913c9da98579312b702a82c18be219cc2a73407c4526f58eba950af": "OpenAI's ViT-B-32.pt",
    "5806e77cd80f8b59890b7e101eabd078d9fb84e6937f9e85e4ecb61988df416f": "OpenAI's ViT-B-16.pt",
    "b8cca3fd41ae0c99ba7e8951adf17d267cdb84cd88be6f7c2e0eca1737a03836": "OpenAI's ViT-L-14.pt",
    "3035c92b350959924f9f00213499208652fc7ea050643e8b385c2dac08641f02": "OpenAI's ViT-L-14-336px.pt",
    "a63082132ba4f97a80bea76823f544493bffa8082296d62d71581a4feff1576f": "openai/clip-vit-base-patch32",
    "f1a17cdbe0f36fec524f5cafb1c261ea3bbbc13e346e0f74fc9eb0460dedd0d3": "openai/clip-vit-large-patch14",
    "a2bf730a0c7debf160f7a6b50b3aaf3703e7e88ac73de7a314903141db026dcb": "openai/clip-vit-large-patch14",
    "e6d1bd7789aa45192b3bf90570a789b478bae1b74ebcce7eddd908e83a2b7c31": "timm/vit_base_patch32_clip_224.openai",
}
_GELU = {
    "ac4f8c4b88af6d963118cbf40ad93176d092abbedfcb752601ae1866352656e6": "laion2b ViT-B-32",
    "1bd3c7172de5b207ceac554f5ab5266166f3b9baccc9af5989bc801016d080ad": "laion2b ViT-B-32",
    "8693edd165efde117185f3e771f1b09bc01f9c19027be4d6d4424bb38f605e4a": "laion2b ViT-B-32",
    "0084e75319a50ad85ef45377bad5bc38f2f58824459eb690048d51c9f8863be5": "laion2b ViT-H-14",
    "9a78ef8e8c73fd0df621682e7a8e8eb36c6916cb3c16b291a082ecd52ab79cc4": "laion2b ViT-H-14",
    "d6d1e3e93c27d6e430db9d20c151d1baa4dc98b503b136b7d85a63f4b02c9749": "laion2b ViT-H-14",
    "1f16b1274ca25493b1f36225efe81d05f66a3f33c487acd1a07c5ba87920de6f": "laion2b ViT-B-16",
    "5ddb47339f44e4fd9cace3d3960d38af1b51a25857440cfae90afc44706d7e2b": "laion2b ViT-L-14",
}
# OpenAI's TorchScript archives are the only ones of their kind.
_CONVERTERS = {"openai_jit": "quickgelu"}


def activation_of(entry: ModelEntry) -> tuple[str, str | None]:
    """The activation an entry's weights are known to need, and how that is known; ("", None) when it is not."""
    for source in entry.sources:
        if source.converter in _CONVERTERS:
            return f"what {source.converter} reads", _CONVERTERS[source.converter]
        for part in source.parts:
            for digest in (part.sha256, part.member_sha256):
                for activation, files in (("quickgelu", _QUICKGELU), ("gelu", _GELU)):
                    if digest in files:
                        return files[digest], activation
    return "", None
