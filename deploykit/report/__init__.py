"""Everything for people: the report and its parts, the README of a package, SARIF."""
