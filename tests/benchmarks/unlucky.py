"""A worker for tests that is quick to start: it squares numbers, fails at 13, dies at 7 and breaks at 99."""

import sys

from workers import serve


def answer(pipe, threads):
    def run(number):
        if number == 7:
            sys.exit(3)
        if number in (13, 99):
            raise ValueError(f"{number} is unlucky")
        return number**2

    serve(pipe, run, lambda error: "99" in str(error))
