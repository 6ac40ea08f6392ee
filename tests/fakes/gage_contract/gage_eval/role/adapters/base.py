"""What a role adapter derives from."""


class RoleAdapter:
    """Keeps what every adapter is configured with."""

    def __init__(self, adapter_id, role_type, capabilities, *, resource_requirement=None, sandbox_config=None):
        self.adapter_id, self.role_type, self.capabilities = adapter_id, role_type, tuple(capabilities)
        self.resource_requirement, self.sandbox_config = resource_requirement or {}, sandbox_config or {}
