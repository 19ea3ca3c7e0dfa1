"""Shared by all packages: axes and small types, errors, names, files, progress, devices."""
