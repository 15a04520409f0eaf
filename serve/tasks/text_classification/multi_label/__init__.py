"""The endpoint of classifiers with any number of labels for each text."""
