"""The sample standard: models, the forms people write, what is scored in a sample, and strict JSON. No torch."""
