"""What adds to the summary of a run."""


class SummaryGenerator:
    """``generate(cache)`` returns what is merged into summary.json."""
