"""The arguments of every command of the `tilewright` program: nothing here loads what a command works with.

Each module is named as its command and has a function `add_NAME`; what the command does stands in the module
of `tilewright.tools.commands` that its `action` names.
"""
