"""What a user's mistake is called, so that the command line can tell it from a fault of the program."""


class UserError(ValueError):
    """A mistake of the user: the message is one line that says what is wrong, where, and what to do.

    The command line prints the message and exits with code 2; anything else is a fault of the program and keeps its
    traceback.
    """
