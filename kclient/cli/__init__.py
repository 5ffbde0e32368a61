"""`kclient`: topics, records and groups on the command line. Data go to stdout, messages to stderr."""
