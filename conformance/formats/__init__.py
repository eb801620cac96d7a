"""A report for programs: one JSON document, annotations of GitHub, SARIF; and the schema of its lines."""
