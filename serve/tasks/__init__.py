"""Each task's endpoint in a folder of its own: its messages, its routes, and its handler."""
