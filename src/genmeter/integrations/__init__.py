"""Doors for people who already have a pipeline. Each imports what it plugs into only when it is used."""
