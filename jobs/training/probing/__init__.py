"""Short measurements of hardware and candidates, which predict a whole run."""
