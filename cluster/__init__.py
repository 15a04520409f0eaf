"""What hardware there is: accelerators, prices, nodes, placements, and the Ray cluster itself."""
