"""Encoders and metrics of every kind the contract knows, small enough to check by hand.

Installed for tests through the same entry points that any other package would use. ``control`` lets a test make an
encoder fail in a chosen way, also in another process (through the environment).
"""
