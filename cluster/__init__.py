"""Hardware: accelerators, prices, nodes, placements, and the Ray cluster."""
