"""What a run leaves on disk: its journal, published models, receipt and report."""
