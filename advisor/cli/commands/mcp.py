"""``perf-advisor mcp``: a server for coding agents."""

from advisor.cli.parser import Parser


def run(arguments: list[str]) -> None:
    """Serve coding agents over standard input and output, by the Model Context Protocol.

    Its tools: inspect, measure, progress, result, cancel, explain, diff, export, ab. Start it in the folder of your
    code.
    """
    Parser("mcp", run.__doc__).parse(arguments)
    from advisor.agents.server import serve

    serve()
