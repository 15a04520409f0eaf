"""What a job is: its specification, how it is loaded, and the torch side of running it."""
