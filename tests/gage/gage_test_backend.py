"""A model backend for the tests: its pictures were drawn before, and it says where they lie."""

from gage_eval.role.model.backends.base_backend import EngineBackend


class Painter(EngineBackend):
    """Answers with the picture of the sample's id."""

    def load_model(self, config):
        """Nothing to load."""

    def generate(self, inputs):
        """The path as text, and as a message with an image."""
        path = f"{inputs['sample']['id']}.png"
        fragment = {"type": "image_url", "image_url": {"url": path}}
        return {"answer": path, "message": {"role": "assistant", "content": [fragment]}}
