"""The dashboard: a JSON API over the records of a storage, and the page that shows it."""
