"""Puts the door ahead of Ray Serve's own wrapper, in every replica that takes requests directly.

Named by RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH. In processes without a server it lets all pass.
"""

import starlette.middleware

from serve import framework
from serve.door import Door


def install() -> list[starlette.middleware.Middleware]:
    """The middleware that Ray Serve asks for."""
    return [starlette.middleware.Middleware(Door, find=framework.find)]
