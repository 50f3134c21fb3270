"""An error names the tunnel, says what to do, and carries what its program printed."""

from tunnel.errors import TunnelError


def test_an_error_has_all_three():
    error = TunnelError("ssh=host ended with 255", hint="see the key", lines=("Permission denied",))
    assert (str(error), error.hint, error.lines) == ("ssh=host ended with 255", "see the key", ("Permission denied",))
