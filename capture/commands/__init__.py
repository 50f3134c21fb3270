"""The command line's verbs: `table` lists them all, and one file a family does them.

Nothing here is imported before its verb is run, so that `treering --help` opens nothing.
"""
