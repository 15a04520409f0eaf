"""Manifests for KubeRay and Kueue. Pure."""
