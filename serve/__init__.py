"""From a published model version to an endpoint on Ray Serve."""
