"""The exceptions that users see."""


class TelescopeError(ValueError):
    """A mistake of the user. The message says what is wrong, what was given and what to do.

    The command line prints it as one line, without a traceback, and exits with code 2.
    """


class WorkerError(TelescopeError):
    """A worker process died, or does not answer."""


class DivergedError(TelescopeError):
    """Weights or gradients are not finite: training cannot go on from here."""
