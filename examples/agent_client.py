"""Use perf-advisor's server as a coding agent does: measure train.py, write the change, prove that it is faster.

    pip install 'perf-advisor[mcp]'
    cd examples && python agent_client.py

The program prints each tool call and its answer, shortened.
"""

import asyncio
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

TUNED = "train.tuned.py"
SHOWN = 900  # characters of an answer


async def main() -> None:
    """Start the server, call its tools in order, and print the answers."""
    server = StdioServerParameters(command=sys.executable, args=["-m", "advisor", "mcp"], env=dict(os.environ))
    async with Client(stdio_client(server)) as client:

        async def call(tool: str, **arguments: Any) -> Any:
            answer = await client.call_tool(tool, arguments)
            text = answer.content[0].text
            if tool != "progress":
                print(f"> {tool}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})")
                print(text if len(text) <= SHOWN else f"{text[:SHOWN]} ...", end="\n\n")
            if answer.is_error:
                sys.exit(1)
            return json.loads(text) if text.startswith("{") else text

        async def result_of(job: dict[str, Any]) -> Any:
            while (await call("progress", job=job["job"], wait_s=30))["state"] == "running":
                pass
            return await call("result", job=job["job"])

        found = await result_of(await call("measure", target="train.py", budget="90s"))
        await call("diff", session=found["session"])
        Path(TUNED).unlink(missing_ok=True)
        await call("export", session=found["session"], path=TUNED)
        python = shlex.quote(sys.executable)
        await result_of(await call("ab", command_a=f"{python} train.py", command_b=f"{python} {TUNED}", budget="90s"))


if __name__ == "__main__":
    asyncio.run(main())
