"""Preference optimisation (DPO): the answer that people chose becomes likelier than the other."""
