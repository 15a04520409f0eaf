"""What to try and what to choose: values in, values out, no Ray, no torch, no clock."""
