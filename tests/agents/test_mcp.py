"""The server for coding agents, driven by the package's own client in a real process."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mcp")
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

pytestmark = pytest.mark.process

MODEL = """\
import torch


def build():
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
"""


def served(folder, conversation):
    """Return the answers of a conversation with a new server, which runs in ``folder``."""

    async def talk():
        environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
        options = {"args": ["-m", "advisor", "mcp"], "cwd": str(folder), "env": environment}
        parameters = StdioServerParameters(command=sys.executable, **options)
        async with Client(stdio_client(parameters)) as client:

            async def call(tool, **arguments):
                answer = await client.call_tool(tool, arguments)
                text = answer.content[0].text
                assert not answer.is_error, text
                return json.loads(text) if text.startswith("{") else text

            async def refused(tool, **arguments):
                answer = await client.call_tool(tool, arguments)
                assert answer.is_error
                return answer.content[0].text

            return await conversation(client, call, refused)

    return asyncio.run(talk())


async def done(call, job):
    while (status := await call("progress", job=job["job"], wait_s=30))["state"] == "running":
        pass
    return status


def test_an_agent_measures_a_target_and_exports_what_was_found(tmp_path):
    """Also mistakes, which are answered in words, and jobs that are cancelled or end with the client."""
    (tmp_path / "mymodel.py").write_text(MODEL)

    async def conversation(client, call, refused):
        named = {tool.name for tool in (await client.list_tools()).tools}
        assert named >= {"inspect", "measure", "progress", "result", "cancel", "explain", "diff", "export", "ab"}
        options = ["--device", "cpu", "--only", "inference_mode,threads", "--accept", "threads"]
        job = await call("measure", target="mymodel.py:build", budget="5s", options=options)
        wrong = await call("measure", target="nothing.py:build")
        assert job["state"] == "running"
        assert (await done(call, job))["state"] == "done"
        found = await call("result", job=job["job"])
        assert found["baseline"]["step_ms"] > 0
        assert found["session"]
        assert len(json.dumps(found)) < 20_000
        assert "outside" in await refused("export", session=found["session"], path="../tuned.yaml")
        await call("export", session=found["session"], path="tuned.yaml")
        assert (tmp_path / "tuned.yaml").exists()
        assert "inference" in await call("explain", recipe="inference_mode")
        assert (await done(call, wrong))["state"] == "failed"
        assert "nothing.py" in " ".join((await call("progress", job=wrong["job"]))["lines"])
        assert "--export" in await refused("measure", target="mymodel.py:build", options=["--export", "/tmp/x.yaml"])
        assert "no job 'job9'" in await refused("result", job="job9")
        assert "no recipe" in await refused("explain", recipe="nonsense")
        job = await call("ab", command_a="echo done", command_b="echo done")
        assert (await done(call, job))["state"] == "failed"
        assert "optimizer step" in " ".join((await call("progress", job=job["job"]))["lines"])
        job = await call("measure", target="mymodel.py:build", budget="5m", options=["--device", "cpu"])
        assert (await call("cancel", job=job["job"]))["state"] == "failed"
        await call("measure", target="mymodel.py:build", budget="5m", options=["--device", "cpu"])

    served(tmp_path, conversation)
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix) == ["mymodel.py", "tuned.yaml"]
    listed = subprocess.run(["ps", "-eo", "args"], check=True, capture_output=True, text=True).stdout
    assert "mymodel.py:build --headless --json - --budget 5m" not in listed, "the jobs end with the client"
