"""What a command prints where it works, and the one line it says where it refuses."""

from tilewright.tools.cli import main


def printed(capsys, *arguments):
    assert main(arguments) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys, *arguments):
    code = main(arguments)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return code, err
