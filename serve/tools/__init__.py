"""Tools around served models: load generator, engine benchmark, export, local server."""
