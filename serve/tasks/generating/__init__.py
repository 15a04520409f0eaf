"""What endpoints share that write text: a model on its own thread, and the handler before it."""
