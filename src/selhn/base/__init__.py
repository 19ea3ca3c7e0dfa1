"""What every room stands on: axes and small types, errors, names, files, progress, devices."""
