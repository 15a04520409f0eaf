"""Processes in front of a replica that read requests and tokenise, and the calls of gRPC."""
