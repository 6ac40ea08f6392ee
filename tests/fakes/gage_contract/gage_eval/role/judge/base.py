"""What a judge implementation derives from."""


class JudgeImplementation:
    """Called as ``invoke(payload, state)`` or awaited as ``ainvoke(payload, state)``."""
