"""Arguments of `tilewright db`."""

from __future__ import annotations

from tilewright.tools.arguments.parsing import Sub
from tilewright.tools.arguments.scope import OptionScope


def add_db(sub: Sub) -> None:
    """Register the command and its actions."""
    p = sub.add_parser("db", help="merge, export and import tuning databases")
    actions = p.add_subparsers(dest="db_action", required=True, metavar="ACTION")
    merge = actions.add_parser("merge", help="take the entries of other databases that are missing or better")
    merge.add_argument(
        "others", nargs="+", metavar="FILE", help="databases to take from; they stay as they are"
    )
    merge.set_defaults(action="commands.db:run_merge")
    export = actions.add_parser("export", help="write entries as JSON lines")
    export.add_argument("output", metavar="FILE", help="file of JSON lines to write")
    export.add_scoped(
        export,
        OptionScope(without=("--tuning-db",)),
        "--used-by",
        metavar="NET.tw",
        help="only the entries of one network: those that travel with this saved executable",
    )
    export.set_defaults(action="commands.db:run_export")
    imported = actions.add_parser("import", help="take entries from JSON lines or saved executables")
    imported.add_argument(
        "files", nargs="+", metavar="FILE", help="exported lines or saved executables (.tw)"
    )
    imported.set_defaults(action="commands.db:run_import")
    for action in (merge, export, imported):
        action.add_argument(
            "--tuning-db",
            metavar="FILE",
            help="the database (default: $TILEWRIGHT_TUNING_DB, else in the cache)",
        )
