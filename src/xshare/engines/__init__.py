"""Inference engines: nothing outside this package knows one."""
