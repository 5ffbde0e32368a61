"""`kclient`: topics, records and groups from the command line. Data on stdout, everything else on stderr."""
