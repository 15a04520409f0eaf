"""What a trained model is judged by."""
