"""Model versions as endpoints of Ray Serve: deployed, rolled out, routed and scaled."""
