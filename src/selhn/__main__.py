"""`python -m selhn` is the command line."""

from selhn.cli import main

main()
