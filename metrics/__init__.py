"""The metrics that ship with genmeter, one folder each; imported as ``genmeter.metrics``."""
