"""What ages: typed readers, devices, capabilities, sources."""
