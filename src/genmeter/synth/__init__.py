"""Procedural media with captions: demo data, test data and, later, training data of the tiny models.

Everything is a function of a seed and draws with numpy alone, so the same seed gives the same pixels everywhere.
"""
