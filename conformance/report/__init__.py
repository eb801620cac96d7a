"""The report of a run, and the files made from it: page, matrix, JUnit, badge, comparison."""
