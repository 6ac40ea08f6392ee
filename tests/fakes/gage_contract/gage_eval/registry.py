"""The registry: open while manifests are discovered, closed afterwards."""


class Registry:
    """Remembers what was registered, by kind and name."""

    def __init__(self):
        self.entries, self.frozen = {}, False

    def register(self, kind, name, value, *, desc, **options):
        """Add an entry. Raises once the registry is closed."""
        if self.frozen:
            raise RuntimeError(f"the registry is closed; {kind}:{name} comes too late")
        self.entries[kind, name] = (value, desc, options)


registry = Registry()
