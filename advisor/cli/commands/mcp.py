"""``perf-advisor mcp``: a server for coding agents."""

from collections.abc import Sequence

from advisor.cli.parser import Parser


def run(arguments: Sequence[str]) -> int:
    """Serve coding agents until the client leaves, or print how to install that. Raises UsageError."""
    parser = Parser(
        "perf-advisor mcp",
        "Serve coding agents over standard input and output, by the Model Context Protocol. Its tools: inspect,\n"
        "measure, progress, result, cancel, explain, diff, export, ab. Start it in the folder of your code.",
    )
    parser.add_argument("--install", action="store_true", help="print the configuration for common clients")
    from advisor.agents.server import serve, show_install

    return show_install() if parser.parse(arguments).install else serve()
