"""Settings of a renderer of the user's own."""

from __future__ import annotations

from grpo.config.python_object import PythonObject


class RendererSettings(PythonObject):
    """Custom renderer: a subclass of `grpo.Renderer`, called with the tokenizer, `tools=` and the options."""

    group = "grpo.renderers"
