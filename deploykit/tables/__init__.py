"""Facts that change over time: typed readers for devices, capabilities, known errors and sources."""
