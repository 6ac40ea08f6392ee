"""A metric that costs next to nothing, so that what remains is the engine."""
