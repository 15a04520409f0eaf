"""Each task in a folder of its own: its pure half, its rows, and its torch half."""
