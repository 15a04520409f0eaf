"""Builds manifests for KubeRay and Kueue, without contacting a cluster."""
