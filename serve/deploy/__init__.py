"""Deploys model versions as endpoints of Ray Serve: rollout, routes, replicas."""
