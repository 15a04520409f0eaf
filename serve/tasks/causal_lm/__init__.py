"""The endpoint of a language model: conversations in, answers out as they are written."""
