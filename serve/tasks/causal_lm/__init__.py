"""The endpoint of a language model: answers conversations, complete or as a stream."""
