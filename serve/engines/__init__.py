"""Engines: a loaded model that turns tokenised rows into logits. No HTTP and no Ray."""
