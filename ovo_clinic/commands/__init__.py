"""The commands of `ovo-clinic`, thin, by what they are about.

Every module holds a typer application `commands` that `ovo_clinic.cli` takes up. Heavy imports stand inside the
commands that need them, so that `--help` and the data commands start at once.
"""
