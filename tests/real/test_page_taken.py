"""What can be taken from the page: files in every format, commands that a shell runs; and groups and pairs."""

import asyncio
import json
import os
import shutil
from urllib.parse import quote

import pytest

from capture.formats import FORMATS
from tests.house import house
from tests.real.sight import looking

pytestmark = pytest.mark.asyncio(loop_scope="session")

CURL_LIMIT_S, COPY_LIMIT_S = 30, 15


async def copied(sight, button):
    """Press a button that copies, and return what is in the clipboard."""
    await sight.tab.evaluate("() => navigator.clipboard.writeText('nothing')")
    await button.click()
    async with asyncio.timeout(COPY_LIMIT_S):
        return await sight.tab.evaluate(
            """async () => {
              for (;;) {
                const text = await navigator.clipboard.readText();
                if (text !== 'nothing') return text;
                await new Promise((done) => { setTimeout(done, 20); });
              }
            }"""
        )


async def in_a_shell(command, home, folder, **more):
    """Run a copied command in a shell, with the key where it says that it reads it; return what it printed."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not on the PATH: install Debian's package curl")
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "KEY": home.appliance.admin_key, "no_proxy": "*", **more}
    running = await asyncio.create_subprocess_exec(
        "sh", "-e", "-c", command, env=env, cwd=folder, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(CURL_LIMIT_S):
            out, err = await running.communicate()
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()
    assert running.returncode == 0, err.decode()
    return out


def answers(out):
    """Return what several commands, one a line, have printed one behind another."""
    decoder, text, told = json.JSONDecoder(), out.decode().strip(), []
    while text:
        value, end = decoder.raw_decode(text)
        told.append(value)
        text = text[end:].lstrip()
    return told


async def asked(home, path):
    """Return the bytes that a route answers with."""
    headers = {"Authorization": f"Bearer {home.appliance.admin_key}"}
    async with home.session.get(home.appliance.control_url + path, headers=headers) as answer:
        assert answer.status == 200
        return await answer.read()


# Chromium takes ten downloads of one page, and may ask a person about the next.
@pytest.mark.parametrize("formats", [list(FORMATS)[:7], list(FORMATS)[7:]], ids=["first", "second"])
async def test_a_rollouts_file_is_what_the_route_gives_in_every_format(browser, town, formats):
    async with looking(browser, town) as sight:
        await sight.enter("/rollouts/bill-0")
        rows = sight.tab.get_by_role("region", name="Training rows", exact=True)
        await rows.get_by_text("Choices and download").click()
        for name in formats:
            await rows.get_by_label("Format").select_option(name)
            async with sight.tab.expect_download() as coming:
                await rows.get_by_role("button", name="Download").click()
            file = await coming.value
            assert file.suggested_filename.startswith("bill-0")
            got = (await file.path()).read_bytes()
            assert got == await asked(town, f"/rollouts/bill-0/sequences?format={name}"), name


async def test_all_that_is_listed_in_one_file(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter("/?group=bill")
        await sight.tab.get_by_role("button", name="Download", exact=True).click()
        dialog = sight.tab.get_by_role("dialog")
        await dialog.wait_for()
        assert await sight.faults_of_access() == []
        async with sight.tab.expect_download() as coming:
            await dialog.get_by_role("button", name="Download", exact=True).click()
        got = (await (await coming.value).path()).read_bytes()
        wanted = await asked(town, "/sequences?group=bill&format=native")
        assert got == wanted
        assert json.loads(got.splitlines()[-1]) == {"end": True, "rollouts": 2, "refused": 0, "next": None}


async def test_two_that_were_picked_in_one_file(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter()
        for name in ("report-0", "report-1"):
            await sight.tab.get_by_role("checkbox", name=f"Select {name}").click()
        await sight.tab.get_by_role("button", name="Download", exact=True).click()
        dialog = sight.tab.get_by_role("dialog", name="Training sequences of 2 rollouts")
        await dialog.locator("input[value=trl]").check()
        async with sight.tab.expect_download() as coming:
            await dialog.get_by_role("button", name="Download", exact=True).click()
        lines = (await (await coming.value).path()).read_bytes().splitlines()
        wanted = [await asked(town, f"/rollouts/{name}/sequences?format=trl") for name in ("report-0", "report-1")]
        assert [json.loads(line) for line in lines] == [json.loads(each) for each in wanted]


@pytest.mark.parametrize(
    ("place", "path"),
    [
        ("/?finding=no_calls", "/rollouts?finding=no_calls&order=-created&limit=100"),
        ("/rollouts/bill-0", "/rollouts/bill-0/graph"),
        ("/rollouts/bill-0/calls/3", "/rollouts/bill-0/calls/3"),
        ("/groups/bill", None),
        ("/compare/bill-0/bill-1", None),
        ("/rollouts/bill-0/tokens/2", None),
    ],
)
async def test_a_copied_command_runs_in_a_shell(browser, town, tmp_path, place, path):
    async with looking(browser, town) as sight:
        await sight.enter(place)
        command = await copied(sight, sight.tab.get_by_role("button", name="Copy as curl", exact=True).first)
        assert town.appliance.admin_key not in command
        out = await in_a_shell(command, town, tmp_path)
        told = answers(out)
        assert told
        assert not any("error" in value and "rollout" not in value and "n" not in value for value in told), told
        if path is not None:
            assert json.loads(await asked(town, path)) in told


async def test_a_request_is_sent_again_from_a_shell(browser, tmp_path):
    # Whatever the agent wrote, the shell sees a text and no command.
    wicked = "It's `touch ran` $(touch ran) '; touch ran; ' \"; touch ran; \" \\n \u00e9 \U0001f600 1e400"
    async with house("scripted", tmp_path) as home, looking(browser, home) as sight:
        rollout = await home.rollout(id="again")
        async with home.chat(rollout, messages=[{"role": "user", "content": wicked}], temperature=0.25) as answer:
            assert answer.status == 200
        await home.idle(rollout)
        await sight.enter("/rollouts/again/calls/0")
        command = await copied(sight, sight.tab.get_by_role("button", name="Copy the request as curl"))
        assert rollout["secret"] not in command
        out = await in_a_shell(command, home, tmp_path, **rollout["env"])
        assert json.loads(out)["choices"]
        assert not (tmp_path / "ran").exists()
        await home.idle(rollout)
        first, second = [await home.call(rollout, n) for n in (0, 1)]
        assert second["request"] == first["request"]


async def test_a_filter_with_bad_words_is_a_text_to_the_shell(browser, town, tmp_path):
    async with looking(browser, town) as sight:
        wicked = "'; touch ran; ' $(touch ran) `touch ran`"
        await sight.enter(f"/?q={quote(wicked)}")
        command = await copied(sight, sight.tab.get_by_role("button", name="Copy as curl", exact=True).first)
        told = answers(await in_a_shell(command, town, tmp_path))
        assert [each["rollouts"] for each in told if "next" in each] == [[]]
        assert not (tmp_path / "ran").exists()


async def test_a_groups_rollouts_are_side_by_side(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter("/groups/bill")
        text = await sight.text("main")
        for part in ("Rewards run from 0 to 1, mean 0.5", "1 of 2 has limit_stop: bill-1.", "Findings side by side"):
            assert part in text
        row = (
            await sight.tab.get_by_role("row")
            .filter(has=sight.tab.get_by_role("link", name="bill-0"))
            .first.inner_text()
        )
        graph = await town.graph({"id": "bill-0"})
        assert f"{graph['rollout']['n_sampled_tokens']:,}" in row
        assert str(graph["rollout"]["n_main_calls"]) in row


async def test_two_are_compared(browser, town):
    async with looking(browser, town) as sight:
        await sight.enter("/compare/report-0/report-1")
        text = await sight.text("main")
        assert "Where they part" in text
        assert "drift_over_threshold" in text
        await sight.tab.get_by_role("link", name="Swap").click()
        await sight.until("() => location.hash === '#/compare/report-1/report-0'")
        await sight.settled()
