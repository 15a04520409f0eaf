"""Which server and which application answer for a task."""

from typing import Any

from serve.server import Answering, ServerConfig


def make(config: ServerConfig) -> tuple[Answering, Any]:
    """A loaded server, and the application that a transport runs."""
    if config.version.task == "causal-lm":
        from serve.chat import surface as chat  # what only language models need takes long
        from serve.chat.server import ChatServer

        return ChatServer(config), chat.application
    from serve import loading, surface

    return loading.load(config), surface.application
