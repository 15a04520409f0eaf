"""Language models that learn responses to prompts, or the assistant's turns of conversations."""
