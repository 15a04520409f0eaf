"""Frontend workers, which accept and tokenise requests for a replica; and the gRPC API."""
