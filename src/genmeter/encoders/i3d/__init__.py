"""I3D on RGB frames: Kinetics-400 logits of a clip, the features of FVD and KVD."""

from genmeter.encoders.i3d.encoder import I3dEncoder

__all__ = ["I3dEncoder"]
