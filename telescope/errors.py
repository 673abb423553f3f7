"""The one exception that users see."""


class TelescopeError(ValueError):
    """A mistake in what the user gave: the message says what is wrong, what was given and what to do.

    The command line prints it as one line and exits with code 2; no traceback.
    """


class WorkerError(TelescopeError):
    """A process that holds a part of the roles died, or does not answer."""
