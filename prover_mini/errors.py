"""The errors a user is meant to read."""


class UserError(Exception):
    """Bad input from outside: a field, a file, a server.

    The message is one line that names the thing and says what to do. The command line prints it and exits with
    code 2, without a traceback; nothing else in the project catches it.
    """


class SharedError(UserError):
    """One that every rank raises at the same place, from figures of all ranks: rank 0 prints it for all of them."""


class RankLost(RuntimeError):
    """Another rank is gone, or has not answered in time: this one cannot go on. The newest checkpoint is whole.

    The command line prints the message, one line, and exits with code 3.
    """


def first_line(error: BaseException) -> str:
    """What a library's error says in at most 300 characters; its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
