"""Sockets: frames in, answers out, in order, within limits. Knows no API: a `Service` answers the frames."""
