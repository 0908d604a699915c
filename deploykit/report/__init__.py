"""Everything written for people: the report and its parts, a package's README, SARIF."""
