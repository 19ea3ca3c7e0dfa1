"""The table: every reader of files that someone else may have written, with a small good example of each.

`test_readers.py` finds each function of the package that opens or parses a file, and fails unless a row enters it.
"""

from faults import of_data, of_indices, of_models, of_runs, of_towers

READERS = {
    **of_models.READERS,
    **of_runs.READERS,
    **of_indices.READERS,
    **of_data.READERS,
    **of_towers.READERS,
}
