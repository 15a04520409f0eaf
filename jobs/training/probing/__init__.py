"""Short measurements of a machine and of candidates, from which a whole run is predicted."""
